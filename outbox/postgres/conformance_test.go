package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/outboxtest"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

func factory() outboxtest.Factory {
	return outboxtest.Factory{
		Dialect: outbox.Postgres,
		Create:  func(t *testing.T) string { t.Helper(); return pgtest.Database(t) },
		Open:    postgres.Open,
	}
}

func TestMain(m *testing.M) { bustest.Main(m) }

func TestConformance(t *testing.T) { outboxtest.Run(t, factory()) } //nolint:paralleltest // the suite is

func TestWrite(t *testing.T) { outboxtest.RunWrite(t, factory()) } //nolint:paralleltest // the suite is

func TestLedger(t *testing.T) {
	t.Parallel()
	outboxtest.RunLedger(t, factory())
}

func BenchmarkDrain(b *testing.B) { outboxtest.Bench(b, factory(), pgtest.Database(b)) }

// soon is a generous bound for what must happen.
const soon = time.Minute

// claims is an outbox with rows, of which tests claim as a relay does.
type claims struct {
	*testing.T
	db *sql.DB
}

// newClaims has n rows of each key, in turn.
func newClaims(t *testing.T, n int, keys ...string) *claims {
	t.Helper()
	db, err := postgres.Open(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	o, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &claims{t, db}
	for i := range n {
		for _, key := range keys {
			c.exec("INSERT INTO outbox (message_id, subject, key) VALUES ($1, $2, $3)", fmt.Sprint(key, i), "events."+key, key)
		}
	}
	return c
}

func (c *claims) exec(query string, args ...any) {
	c.Helper()
	if _, err := c.db.ExecContext(c.Context(), query, args...); err != nil {
		c.Fatalf("%s: %v", query, err)
	}
}

func (c *claims) claim(ctx context.Context, most int, owner string) (ids []int64, err error) {
	rows, err := c.db.QueryContext(ctx, "SELECT id FROM outbox_claim($1, $2, interval '1 h')", most, owner)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func (c *claims) want(owner string, want ...int64) {
	c.Helper()
	got, err := c.claim(c.Context(), 100, owner)
	if err != nil || !slices.Equal(got, want) {
		c.Fatalf("%s has claimed %v, %v, want %v", owner, got, err, want)
	}
}

// The owner of an expired lease settles the first row of a key at the moment of
// a claim: what follows has to wait until it is known what became of that.
func TestClaimPassesOverRowsBehindALockedOne(t *testing.T) {
	t.Parallel()
	c := newClaims(t, 3, "a", "b") // a has rows 1, 3, 5
	c.exec("UPDATE outbox SET status = 'PROCESSING', owner = 'slow', due_at = clock_timestamp() - interval '1 s' WHERE key = 'a'")
	settling, err := c.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer settling.Rollback() //nolint:errcheck // after a commit it does nothing
	if _, err := settling.ExecContext(t.Context(), "UPDATE outbox SET status = 'PENDING', due_at = clock_timestamp() + interval '1 h', owner = NULL WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	c.want("during", 2, 4, 6)
	if err := settling.Commit(); err != nil {
		t.Fatal(err)
	}
	c.want("behind a row that waits")
	c.exec("UPDATE outbox SET due_at = clock_timestamp() WHERE id = 1")
	c.want("when it is due", 1, 3, 5)
}

// A relay that reads a feed settles the first row of a key, which has no time
// yet, at the moment of another relay's claim.
func TestClaimPassesOverRowsBehindALockedOneWithoutATime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		statement string
		then      []int64
	}{
		"given back": {"UPDATE outbox SET due_at = clock_timestamp() + interval '1 h' WHERE id = 1", nil},
		"leased":     {"UPDATE outbox SET status = 'PROCESSING', owner = 'feed', due_at = clock_timestamp() + interval '1 h' WHERE id = 1", nil},
		"yielded":    {"UPDATE outbox SET due_at = clock_timestamp() WHERE id = 1", []int64{1, 3, 5}},
		"published":  {"UPDATE outbox SET status = 'PUBLISHED', published_at = clock_timestamp() WHERE id = 1", []int64{3, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClaims(t, 3, "a", "b") // a has rows 1, 3, 5
			settling, err := c.db.BeginTx(t.Context(), nil)
			must(t, err)
			defer settling.Rollback() //nolint:errcheck // after a commit it does nothing
			_, err = settling.ExecContext(t.Context(), tt.statement)
			must(t, err)
			c.want("during", 2, 4, 6)
			must(t, settling.Commit())
			c.want("then", tt.then...)
		})
	}
}

// Rows of a key are never with two relays at once.
func TestClaimsAtOnceShareNoKey(t *testing.T) {
	t.Parallel()
	const claimers, keys = 8, 30
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("key-", i)
	}
	c := newClaims(t, 10, names...)
	var work sync.WaitGroup
	for i := range claimers {
		work.Go(func() {
			for {
				ids, err := c.claim(t.Context(), 7, fmt.Sprint("relay-", i))
				if err != nil {
					t.Error(err)
				}
				if len(ids) == 0 {
					return
				}
			}
		})
	}
	work.Wait()
	var claimed, shared int
	if err := c.db.QueryRowContext(t.Context(), `SELECT count(DISTINCT key),
		(SELECT count(*) FROM (SELECT 1 FROM outbox WHERE owner IS NOT NULL GROUP BY key HAVING count(DISTINCT owner) > 1) AS s)
		FROM outbox WHERE owner IS NOT NULL`).Scan(&claimed, &shared); err != nil {
		t.Fatal(err)
	}
	if claimed != keys || shared != 0 {
		t.Errorf("%d keys are claimed, %d of them by several; want %d and 0", claimed, shared, keys)
	}
}

// system is a relay on a database.
type system struct {
	outbox *outbox.Outbox
	relay  *outbox.Relay
	bus    *bus.Bus
}

func start(t *testing.T, target string) *system {
	t.Helper()
	return startOn(t, target, bustest.NewBus(t), outbox.RelayConfig{Lease: 2 * time.Second})
}

func startOn(t *testing.T, target string, b *bus.Bus, cfg outbox.RelayConfig) *system {
	t.Helper()
	db, err := postgres.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &system{bus: b}
	if s.outbox, err = outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Names: s.bus.Names(), Source: "/test"}); err != nil {
		t.Fatal(err)
	}
	if err := s.outbox.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.relay, err = outbox.NewRelay(s.outbox, s.bus, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// add commits n events of a key.
func (s *system) add(t *testing.T, n int, key string) {
	t.Helper()
	tx, err := s.outbox.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	for range n {
		e, err := s.outbox.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(key)})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.outbox.Add(t.Context(), tx, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// published waits until so many messages are stored and no row waits.
func (s *system) published(t *testing.T, n uint64) {
	t.Helper()
	bustest.Eventually(t, soon, func() error {
		stats, err := s.outbox.Stats(t.Context())
		if err != nil {
			return err
		}
		stream, err := s.bus.JetStream().Stream(t.Context(), s.bus.Names().EventsStream())
		if err != nil {
			return err
		}
		if stored := stream.CachedInfo().State.Msgs; stored != n || stats.Pending+stats.Processing > 0 {
			return fmt.Errorf("%d messages are stored, want %d; %+v", stored, n, stats)
		}
		return nil
	})
}

// The server is killed, and comes back, while the relay runs.
func TestRelaySurvivesTheDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, pg.Config{})
	s := start(t, server.Database(t))
	s.add(t, 50, "before")
	s.published(t, 50)
	server.Kill(t)
	bustest.Eventually(t, soon, func() error {
		if err := s.relay.Health(); !errors.Is(err, outbox.ErrDatabase) {
			return fmt.Errorf("health is %w", err)
		}
		return nil
	})
	server.Restart(t)
	bustest.Eventually(t, soon, func() error { return s.outbox.DB().PingContext(t.Context()) })
	s.add(t, 50, "after")
	s.published(t, 100)
	bustest.Eventually(t, soon, s.relay.Health)
}

// In other isolation levels a claim would not see what the one before has taken.
func TestRelayNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	s := start(t, pgtest.Database(t)+"&default_transaction_isolation=repeatable%20read")
	s.add(t, 1, "key")
	bustest.Eventually(t, soon, func() error {
		if err := s.relay.Health(); !errors.Is(err, outbox.ErrDatabase) || !strings.Contains(err.Error(), "read committed") {
			return fmt.Errorf("health is %w", err)
		}
		return nil
	})
}
