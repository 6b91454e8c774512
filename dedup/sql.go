package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// SQLConfig are the choices of [NewSQL].
type SQLConfig struct {
	// Retention is how long an event is remembered after its last change:
	// how late a copy of it may come and still be recognised. At least one
	// second. Defaults to 24 h.
	Retention time.Duration
	// Claims makes a worker claim an event before its handler runs, as [KV]
	// does: for handlers with effects outside the database, at the price of one
	// more transaction an event. Without it two workers that get copies of one
	// event at the same time may both run the handler; one of their
	// transactions is committed. Defaults to false.
	Claims bool
	// Logger logs takeovers of claims whose worker died. Defaults to silence.
	Logger zerolog.Logger
}

// SQL is the ledger in the service's own database. The done mark, the outgoing
// messages, as rows of the outbox, and what the handler has changed in its
// transaction (outbox.Inbox.Begin) are committed together; a relay publishes
// the rows.
type SQL struct {
	*engine
	marks *sqlStore
}

var _ Ledger = (*SQL)(nil)

// NewSQL returns a ledger with marks in db. Dead letters, and messages that
// bring an event back later, are published on b at once. It does no I/O. The
// error matches [ErrConfig].
func NewSQL(b *bus.Bus, db Database, cfg SQLConfig) (*SQL, error) {
	retention, err := retentionOf(cfg.Retention)
	if err != nil {
		return nil, err
	}
	s := &sqlStore{bus: b, db: db, retention: retention, runs: map[string]run{}}
	e := newEngine(s, retention, time.Now, cfg.Logger)
	e.claimless, e.atomic = !cfg.Claims, true
	return &SQL{engine: e, marks: s}, nil
}

// Prepare checks that the ledger can keep its promise: the tables are there,
// and the retention covers horizon, the longest time over which an event can be
// retried. Errors match [ErrConfig], or are the database's: outbox.ErrSchema
// says that it has to be migrated.
func (l *SQL) Prepare(ctx context.Context, horizon time.Duration) error {
	if err := checkHorizon(l.marks.retention, horizon); err != nil {
		return err
	}
	if _, err := l.marks.read(ctx, markKey("prepare", "0")); err != nil {
		return fmt.Errorf("dedup: prepare: %w", err)
	}
	return nil
}

// Claim takes an event for this worker, or says why not, and lets its handler
// begin a transaction. Errors are those of [KV.Claim] but [ErrNoBucket], and the database's.
func (l *SQL) Claim(ctx context.Context, r Request) (*Claim, error) {
	c, err := l.engine.Claim(ctx, r)
	if err == nil && c.Status == Claimed {
		l.marks.admit(c)
	}
	return c, err
}

// Complete commits the handler's transaction with the done mark and out.
// Completing again is safe: a done mark that was stored is recognised, and what
// has lost its handler's transaction is not committed without it.
//
// Errors match [ErrLeaseLost] or [ErrSettled]; [ErrStale] when others were in
// the way of the transaction; [bus.ErrTooLarge] for a message that no relay
// could publish; or are the database's. After an error nothing is stored, or
// all of it; the handler's transaction is over, and after the last three the
// claim is still held.
func (l *SQL) Complete(ctx context.Context, c *Claim, out []*nats.Msg) error {
	err := l.fit(out)
	if err == nil {
		err = l.engine.Complete(ctx, c, out)
	}
	if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrSettled) {
		l.marks.leave(c)
	}
	return err
}

// fit refuses what the relay would have to park: the step is not done then.
func (l *SQL) fit(out []*nats.Msg) error {
	for _, m := range out {
		if err := l.marks.bus.Fit(m); err != nil {
			return fmt.Errorf("dedup: complete: %w", err)
		}
	}
	return nil
}

// Release rolls the handler's transaction back and gives the event back, as
// [KV.Release] does. later is published before the mark is written.
func (l *SQL) Release(ctx context.Context, c *Claim, failure *event.Attempt, later *nats.Msg) error {
	l.marks.leave(c)
	return l.engine.Release(ctx, c, failure, later)
}

// Park rolls the handler's transaction back, publishes the letter and then
// writes the parked mark, as [KV.Park] does.
func (l *SQL) Park(ctx context.Context, c *Claim, failure *event.Attempt, letter *nats.Msg) error {
	l.marks.leave(c)
	return l.engine.Park(ctx, c, failure, letter)
}

// sqlStore is a store in a database.
type sqlStore struct {
	bus       *bus.Bus
	db        Database
	retention time.Duration

	mu   sync.Mutex
	runs map[string]run // by the mark's key
}

// run is what a claim's handler may do in the database.
type run struct {
	by     string // the claim
	commit Commit
	leave  func()
}

func (s *sqlStore) admit(c *Claim) {
	commit, leave := s.db.Admit(c.Request.Consumer, c.Request.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[c.key] = run{by: c.record.By, commit: commit, leave: leave}
}

// leave ends what c's handler has begun, if c is still the latest claim of its event.
func (s *sqlStore) leave(c *Claim) {
	c.mu.Lock()
	by := c.record.By
	c.mu.Unlock()
	s.mu.Lock()
	r := s.runs[c.key]
	latest := r.leave != nil && r.by == by
	if latest {
		delete(s.runs, c.key)
	}
	s.mu.Unlock()
	if latest {
		r.leave()
	}
}

func (s *sqlStore) write(ctx context.Context, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	data, err := r.encode()
	if err != nil {
		return 0, err
	}
	lifetime := s.retention
	if r.kept() {
		lifetime = 0
	}
	var revision uint64
	if r.State == stateDone {
		revision, err = s.commit(ctx, key, after, r.By, data, out)
	} else {
		// A dead letter, or what brings an event back, is stored first, so that
		// a crash between the two leaves the event to be tried again.
		if err := publish(ctx, s.bus, out); err != nil {
			return 0, err
		}
		consumer, k := splitKey(key)
		revision, err = s.db.Write(ctx, consumer, k, after, data, lifetime)
	}
	if errors.Is(err, bus.ErrConflict) {
		err = fmt.Errorf("%w: %w", errConflict, err)
	}
	return revision, err
}

// commit ends the run of a claim. One that was replaced by a newer claim of
// this ledger has nothing to commit any more.
func (s *sqlStore) commit(ctx context.Context, key string, after uint64, by string, data []byte, out []*nats.Msg) (uint64, error) {
	s.mu.Lock()
	r := s.runs[key]
	s.mu.Unlock()
	if r.by != by {
		return 0, errConflict
	}
	revision, err := r.commit(ctx, after, data, s.retention, out)
	if errors.Is(err, bus.ErrBusy) {
		err = fmt.Errorf("%w: %w", ErrStale, err)
	}
	return revision, err
}

func (s *sqlStore) read(ctx context.Context, key string) (entry, error) {
	consumer, k := splitKey(key)
	data, revision, written, err := s.db.Read(ctx, consumer, k)
	if revision == 0 || err != nil {
		return entry{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return entry{}, err
	}
	return entry{revision: revision, record: r, created: written}, nil
}

func (s *sqlStore) now(ctx context.Context) (time.Time, error) { return s.db.Now(ctx) }

// splitKey is the inverse of markKey.
func splitKey(key string) (event.Consumer, event.EventKey) {
	c, k, _ := strings.Cut(key, ".")
	return event.Consumer(c), event.EventKey(k)
}
