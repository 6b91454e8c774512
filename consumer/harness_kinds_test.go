package consumer_test

import (
	"context"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// ledger is what all ledgers are: for consumers, and for people.
type ledger interface {
	dedup.Ledger
	Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dedup.Mark, bool, error)
	Discard(ctx context.Context, c event.Consumer, k event.EventKey) error
	TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error)
}

// kind opens a ledger.
type kind func(b *bus.Bus) (ledger, error)

func kvKind(b *bus.Bus) (ledger, error) { return dedup.NewKV(b, dedup.Config{}) }

func partitionKind(b *bus.Bus) (ledger, error) {
	return dedup.NewPartitions(b, dedup.PartitionsConfig{})
}

// claimingKind is the same ledger, whose events say that they start.
func claimingKind(b *bus.Bus) (ledger, error) {
	return dedup.NewPartitions(b, dedup.PartitionsConfig{Claims: true})
}

// open opens the system's ledger on a connection.
func (s *system) open(b *bus.Bus) ledger {
	s.tb.Helper()
	kind := s.kind
	if kind == nil {
		kind = kvKind
	}
	l, err := kind(b)
	if err != nil {
		s.tb.Fatal(err)
	}
	return l
}

// eachKind runs a test with one ledger of each kind.
func eachKind(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	for name, kind := range map[string]kind{
		"KV": kvKind, "partitions": partitionKind,
		"SQLite": sqlKind(t, engines["SQLite"], false), "Postgres": sqlKind(t, engines["Postgres"], true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = kind
			test(t, s)
		})
	}
}

// eachNATS runs a test with each ledger that keeps what it knows in NATS.
func eachNATS(t *testing.T, test func(t *testing.T, kind kind)) {
	t.Helper()
	for name, kind := range map[string]kind{"KV": kvKind, "partitions": partitionKind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// eachLedger runs a test of a gap with every ledger. claims is how many crashes
// are counted of a process that dies with an event delivered for the first time:
// one, but none where nothing had told that the event starts.
func eachLedger(t *testing.T, fails bool, test func(t *testing.T, g *gap, claims int)) {
	t.Helper()
	for name, l := range map[string]struct {
		kind   kind
		claims int
	}{
		"partitions with claims":    {claimingKind, 1},
		"partitions without claims": {partitionKind, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newGapOf(t, l.kind, fails), l.claims)
		})
	}
	eachStore(t, fails, test)
}

// eachStore runs it with those ledgers whose claims are in a store.
func eachStore(t *testing.T, fails bool, test func(t *testing.T, g *gap, claims int)) {
	t.Helper()
	t.Run("KV", func(t *testing.T) {
		t.Parallel()
		test(t, newGapOf(t, kvKind, fails), 1)
	})
	eachSQL(t, func(t *testing.T, kind kind, claims int) {
		t.Helper()
		test(t, newGapOf(t, kind, fails), claims)
	})
}

// eachEngine runs a test with each database and a ledger without claims, the default.
func eachEngine(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = sqlKind(t, e, false)
			test(t, s)
		})
	}
}

// eachSQL runs a test with each database, with claims and without.
func eachSQL(t *testing.T, test func(t *testing.T, kind kind, claims int)) {
	t.Helper()
	for name, e := range engines {
		for claims, how := range []string{"without claims", "with claims"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				test(t, sqlKind(t, e, claims == 1), claims)
			})
		}
	}
}
