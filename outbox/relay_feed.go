package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// grace is how long the feed has a row for itself, before it is claimed.
	grace = 10 * time.Second
	// feedRetry is about how soon a feed that broke, or that another relay reads, is tried again.
	feedRetry = time.Second
	partFeed  = "read feed"
)

// tail is the part of a relay that publishes what its feed tells. The claims
// beside it take what has a time, and what is left over.
type tail struct {
	relay *Relay
	feed  Feed
	sql   tailStatements
	work  sync.WaitGroup // rows that were leased

	// turn is held while rows of the feed are on their way, and while the relay
	// claims, so that neither sends what the other does. It comes before mu.
	turn sync.Mutex

	mu    sync.Mutex
	state tailState
}

// tailState says which rows without a time the claims take.
type tailState int

const (
	starting tailState = iota // those older than a moment: another relay may be reading the feed
	alone                     // all: there is no feed
	reading                   // those older than grace
	standby                   // those older than a lease: another relay reads the feed
)

func newTail(r *Relay) *tail {
	return &tail{relay: r, feed: r.cfg.Feed, sql: tailStatementsOf(r.outbox.cfg.Prefix)}
}

// run reads the feed until ctx ends.
func (t *tail) run(ctx context.Context) {
	defer t.work.Wait()
	for {
		err := t.feed.Tail(ctx, t.attached, t.publish)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrFeedTaken) {
			if t.enter(standby) != standby {
				t.relay.log.Info().Err(err).Msg("outbox relay: standing by")
			}
			t.relay.health.clear(partFeed)
		} else {
			t.enter(alone)
			t.relay.trouble(partFeed, err)
			t.relay.look()
		}
		if !pause(ctx, feedRetry/2+rand.N(feedRetry)) { //nolint:gosec // jitter
			return
		}
	}
}

// enter returns the state before.
func (t *tail) enter(s tailState) tailState {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.state
	t.state = s
	return before
}

// attached makes all rows that are there the claims', so that no row of the feed
// overtakes one of its key that was there before.
func (t *tail) attached(ctx context.Context) error {
	const page = 10_000
	for n, last := page, int64(math.MinInt64); n == page; {
		if err := t.relay.outbox.db.QueryRowContext(ctx, t.sql.yieldAll, last, page).Scan(&n, &last); err != nil {
			return fmt.Errorf("%w: feed: backlog: %w", ErrDatabase, err)
		}
	}
	t.enter(reading)
	t.relay.log.Info().Msg("outbox relay: reading the feed")
	t.relay.health.clear(partFeed)
	t.relay.look()
	return nil
}

// claim is the relay's, in turn with the feed and of rows that are not the feed's.
func (t *tail) claim(ctx context.Context) (batch, bool, error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	return t.relay.claim(ctx, t.age())
}

// age is how old a row without a time must be to be claimed.
func (t *tail) age() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.state {
	case starting:
		return 2 * feedRetry
	case reading:
		return grace
	case standby:
		return t.relay.cfg.Lease
	default:
		return 0
	}
}

// quiet says that commits are no reason to claim: the feed tells of them.
func (t *tail) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state == reading || t.state == standby
}

// publish is what the feed calls with ids of rows. While NATS is not there it
// waits, and the slot with it.
func (t *tail) publish(ctx context.Context, ids []int64) error {
	for part := range slices.Chunk(ids, t.relay.cfg.Batch) {
		for len(part) > 0 {
			if err := t.ready(ctx); err != nil {
				return err
			}
			var err error
			if part, err = t.send(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready waits until there is somebody to publish to, and room.
func (t *tail) ready(ctx context.Context) error {
	for wait := minPoll; t.relay.bus.Health() != nil || t.relay.full(); wait = min(2*wait, feedRetry) {
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}
