package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

const (
	// feedGrace is how long a row is the feed's alone. Then it is claimed.
	feedGrace = 10 * time.Second
	// feedRetry is about how soon the relay tries again to read a feed that broke, or
	// that another relay reads.
	feedRetry = time.Second
	partFeed  = "read feed"
)

// feedRelay is the part of a relay that publishes the rows of which its feed tells.
// The relay claims rows beside it: those that have a due_at, and those that the feed
// has not dealt with in time.
//
// A row is the feed's while it has no due_at and nobody has leased it. To hand it over
// to the claims is to give it a due_at.
type feedRelay struct {
	relay *Relay
	feed  Feed
	sql   feedStatements
	work  sync.WaitGroup // rows that were leased

	// turn is held while rows of the feed are on their way, and while the relay
	// claims, so that no row is sent by both. It comes before mu.
	turn sync.Mutex

	mu    sync.Mutex
	state feedState
}

// feedState says which rows without a due_at the relay claims.
type feedState int

const (
	feedStarting feedState = iota // those older than a moment: another relay may be reading the feed
	feedBroken                    // all
	feedReading                   // those older than feedGrace
	feedTaken                     // those older than a lease: another relay reads the feed
)

func newFeedRelay(r *Relay) *feedRelay {
	return &feedRelay{relay: r, feed: r.cfg.Feed, sql: feedStatementsOf(r.outbox.cfg.Prefix)}
}

// run reads the feed until ctx ends.
func (f *feedRelay) run(ctx context.Context) {
	defer f.work.Wait()
	for {
		err := f.feed.Tail(ctx, f.attached, f.publish)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrFeedTaken) {
			if f.enter(feedTaken) != feedTaken {
				f.relay.log.Info().Err(err).Msg("outbox relay: standing by")
			}
			f.relay.health.Clear(partFeed)
		} else {
			f.enter(feedBroken)
			f.relay.trouble(partFeed, err)
			f.relay.claimSoon()
		}
		if !backoff.Wait(ctx, backoff.Around(feedRetry)) {
			return
		}
	}
}

// enter sets the state, and returns the one before.
func (f *feedRelay) enter(s feedState) feedState {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.state
	f.state = s
	return before
}

// attached is what the feed calls when it begins to tell of commits. It hands all rows
// that are in the table over to the claims: no row of the feed overtakes an earlier one
// of its key.
func (f *feedRelay) attached(ctx context.Context) error {
	const page = 10_000
	for n, last := page, int64(math.MinInt64); n == page; {
		if err := f.relay.outbox.db.QueryRowContext(ctx, f.sql.handOverAll, last, page).Scan(&n, &last); err != nil {
			return fmt.Errorf("%w: feed: backlog: %w", ErrDatabase, err)
		}
	}
	f.enter(feedReading)
	f.relay.log.Info().Msg("outbox relay: reading the feed")
	f.relay.health.Clear(partFeed)
	f.relay.claimSoon()
	return nil
}

// claim is [Relay.claim], in turn with the feed.
func (f *feedRelay) claim(ctx context.Context) (batch, bool, error) {
	f.turn.Lock()
	defer f.turn.Unlock()
	return f.relay.claim(ctx, f.claimAge())
}

// claimAge is how old a row without a due_at has to be before the relay claims it.
func (f *feedRelay) claimAge() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.state {
	case feedStarting:
		return 2 * feedRetry
	case feedReading:
		return feedGrace
	case feedTaken:
		return f.relay.cfg.Lease
	default:
		return 0
	}
}

// tellsOfCommits reports whether the feed, here or in another relay, tells of commits:
// then they are no reason to claim.
func (f *feedRelay) tellsOfCommits() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state == feedReading || f.state == feedTaken
}

// publish is what the feed calls with ids of rows. While NATS is not there it waits, and
// the feed with it.
func (f *feedRelay) publish(ctx context.Context, ids []int64) error {
	for part := range slices.Chunk(ids, f.relay.cfg.Batch) {
		for len(part) > 0 {
			if err := f.ready(ctx); err != nil {
				return err
			}
			var err error
			if part, err = f.send(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready waits until the bus is healthy and not too many rows are in flight.
func (f *feedRelay) ready(ctx context.Context) error {
	for wait := minPoll; f.relay.bus.Health() != nil || f.relay.full(); wait = min(2*wait, feedRetry) {
		if !backoff.Wait(ctx, wait) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}
