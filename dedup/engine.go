package dedup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// engine is a ledger over a store. Workers compete for events. The engine has the
// rules of claiming and settling, which are the same for every store.
type engine struct {
	book
	log zerolog.Logger
	// clock is the clock of this process. Only differences of its readings are used.
	clock func() time.Time
	live  live
	// claimless is true if an event that is delivered for the first time runs without
	// a claim. The store's one write is then fenced: it fails if the mark exists.
	claimless bool
	// atomic is true if the store writes outgoing events and the done mark in one batch.
	atomic bool

	worker string // random; distinguishes this ledger's claims from all others
	serial atomic.Uint64
}

func newEngine(s store, retention time.Duration, clock func() time.Time, log zerolog.Logger) *engine {
	return &engine{book: book{s, retention}, log: log, clock: clock, worker: rand.Text()[:10]}
}

const (
	// claimTries is how often a claim tries to write before it returns Busy. Each
	// failed try means that another worker has just written the mark.
	claimTries = 4
	// retryMargin is added to the rest of another worker's lease, so that the
	// next try does not come a moment too early.
	retryMargin = 50 * time.Millisecond
)

// Claim takes an event for this worker, or returns why it cannot. A new event costs
// one write, or none if this ledger works without claims. A lease that has run out is
// taken over and counted as a crash. The store's clock decides whether it has run
// out, and the same clock stamped its last renewal. The clocks of workers do not count.
//
// Errors match [ErrConfig] (the request), [ErrBadMark], [ErrNoBucket], or
// those of [bus.Pending.Wait].
func (e *engine) Claim(ctx context.Context, r Request) (*Claim, error) {
	key := markKey(r.Consumer, r.Key)
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("dedup: claim %s: %w", key, err)
	}
	by := e.newBy()
	past, retryIn := e.live.reserve(key, by, r.Lease, e.clock())
	if retryIn > 0 {
		return &Claim{Request: r, Status: Busy, RetryIn: retryIn}, nil
	}
	c, err := e.claim(ctx, key, by, past, r)
	if err != nil {
		e.live.lose(key, by) // the claim may be stored although no answer came
		return nil, fmt.Errorf("dedup: claim %s: %w", key, err)
	}
	switch {
	case c.Status == Claimed:
		e.live.renew(key, by, c.renewed.Add(r.Lease))
	case c.Status == Busy && len(past) > 0:
		e.live.lose(key, by) // a later claim may need the names of lost claims
	default:
		e.live.drop(key, by)
	}
	return c, nil
}

// claim writes first and reads only if that fails, because most events are new. A
// conflict means only that another worker wrote the mark. It does not mean that the
// event has taken effect.
func (e *engine) claim(ctx context.Context, key, by string, past []string, r Request) (*Claim, error) {
	if e.claimless && !r.Redelivered && r.Replay == 0 && len(past) == 0 {
		return &Claim{Request: r, Status: Claimed, key: key, record: record{}.claimed(by, r), renewed: e.clock()}, nil
	}
	var found entry
	for range claimTries {
		before, status, left, err := e.judge(ctx, found, past, r)
		if err != nil {
			return nil, err
		}
		if status != Claimed {
			return &Claim{Request: r, Status: status, RetryIn: left}, nil
		}
		next, sent := before.claimed(by, r), e.clock()
		revision, err := e.store.write(ctx, nil, key, found.revision, next, nil)
		if err == nil {
			if before.Crashes > found.record.Crashes {
				e.log.Warn().Str("consumer", string(r.Consumer)).Str("event_key", string(r.Key)).
					Int("crashes", before.Crashes).Msg("took over a claim whose lease had ended")
			}
			return &Claim{
				Request: r, Status: Claimed,
				Attempts: next.Attempts, Failures: next.Failures, Crashes: next.Crashes,
				key: key, revision: revision, record: next, renewed: sent,
			}, nil
		}
		if !errors.Is(err, errConflict) {
			return nil, err
		}
		if found, err = e.store.read(ctx, key); err != nil {
			return nil, err
		}
	}
	return &Claim{Request: r, Status: Busy, RetryIn: retryMargin}, nil
}

// judge returns the status of a request that finds this entry. If the status is
// Claimed it also returns the record on which the claim builds.
func (e *engine) judge(ctx context.Context, found entry, past []string, r Request) (record, Status, time.Duration, error) {
	rec := found.record
	switch rec.State {
	case stateDone:
		return rec, Done, 0, nil
	case stateParked, stateDiscarded:
		if r.Replay <= rec.Replay {
			return rec, Parked, 0, nil
		}
	case stateClaimed:
		if slices.Contains(past, rec.By) {
			break // an outage left our own claim behind: nothing has crashed
		}
		now, err := e.store.now(ctx)
		if err != nil {
			return rec, 0, 0, err
		}
		if left := found.created.Add(rec.lease()).Sub(now); left > 0 {
			return rec, Busy, left + retryMargin, nil
		}
		rec.Crashes++ // the worker ended without an outcome
	case stateWaiting, stateKnown, "":
	}
	return rec, Claimed, 0, nil
}

// newBy returns a unique name for a claim. It is short because every mark holds one.
func (e *engine) newBy() string {
	return e.worker + "-" + strconv.FormatUint(e.serial.Add(1), 36)
}

// Partitions returns nil: the worker that claims an event first has it.
func (e *engine) Partitions() *Partitions { return nil }

// Health returns nil: these ledgers have no faults besides those that their calls return.
func (e *engine) Health() error { return nil }

// Run waits until ctx ends: there is nothing to do beside the calls.
func (e *engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
