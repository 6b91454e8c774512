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

// engine is a ledger over a store, whose workers compete for events: the rules of
// claiming and settling, the same for every such store.
type engine struct {
	book
	log zerolog.Logger
	// clock is this process's; only differences of its readings are used.
	clock func() time.Time
	live  live
	// claimless says that an event delivered for the first time runs without a
	// claim: the store fences its one write by the mark that is not there yet.
	claimless bool
	// atomic says that the store makes out and a done mark durable together.
	atomic bool

	worker string // random: tells this ledger's claims from all others
	serial atomic.Uint64
}

func newEngine(s store, retention time.Duration, clock func() time.Time, log zerolog.Logger) *engine {
	return &engine{book: book{s, retention}, log: log, clock: clock, worker: rand.Text()[:10]}
}

const (
	// claimTries is how often a claim tries to write before it says busy. Each
	// failed try means that somebody else has just written the mark.
	claimTries = 4
	// retryMargin is added to what is left of another's lease, so that the
	// next try does not come a moment too early.
	retryMargin = 50 * time.Millisecond
)

// Claim takes an event for this worker, or says why not. A new event costs one
// write, or none if this ledger works without claims. A lease that has run out is
// taken over and counted as a crash; whether it has is judged by the store's clock,
// which also stamped its last renewal: the clocks of workers have no say.
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
		e.live.lose(key, by) // it may be stored without our knowing
		return nil, fmt.Errorf("dedup: claim %s: %w", key, err)
	}
	switch {
	case c.Status == Claimed:
		e.live.renew(key, by, c.renewed.Add(r.Lease))
	case c.Status == Busy && len(past) > 0:
		e.live.lose(key, by) // the names of lost claims may be needed yet
	default:
		e.live.drop(key, by)
	}
	return c, nil
}

// claim writes first and reads only if that fails: most events are new. A
// conflict says no more than that somebody wrote the mark, never that the
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

// judge says what a request gets that finds this entry, and, if it is
// Claimed, the record that the claim follows.
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
			break // our own, left behind by an outage: nothing crashed
		}
		now, err := e.store.now(ctx)
		if err != nil {
			return rec, 0, 0, err
		}
		if left := found.created.Add(rec.lease()).Sub(now); left > 0 {
			return rec, Busy, left + retryMargin, nil
		}
		rec.Crashes++ // it ended without an outcome
	case stateWaiting, stateKnown, "":
	}
	return rec, Claimed, 0, nil
}

// newBy names a claim: unique, and short because it is in every mark.
func (e *engine) newBy() string {
	return e.worker + "-" + strconv.FormatUint(e.serial.Add(1), 36)
}

// Partitions returns nil: whoever claims an event first has it.
func (e *engine) Partitions() *Partitions { return nil }

// Health returns nil: what these ledgers stand on tells its trouble by itself.
func (e *engine) Health() error { return nil }

// Run waits until ctx ends: there is nothing to do beside the calls.
func (e *engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
