package dedup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// Ledger records, for each consumer and event, whether the event has taken
// effect. All methods are safe for concurrent use, and each is one durable
// step: an error means that nothing is known to be recorded, and doing it
// again is safe. An error matching [ErrLeaseLost] means that another worker
// owns the event now: the caller must not settle the message in any way. One
// matching [ErrSettled] means that the event has come to its end elsewhere:
// the caller acknowledges the message, as if the claim had been answered Done.
//
// An outage, which is nobody's fault, matches [bus.ErrUnavailable], [bus.ErrDenied],
// [bus.ErrStreamFull] or another of the consumer's list; any other error of
// Complete says that this step cannot be stored, and spends an attempt of its event.
//
// The methods after Park are about the consumer rather than one event.
type Ledger interface {
	// Claim takes an event for this worker, or says why not ([Claim.Status]).
	Claim(ctx context.Context, r Request) (*Claim, error)
	// Extend renews the lease of a claim. On a claim that has ended it does nothing.
	Extend(ctx context.Context, c *Claim) error
	// Complete makes the outgoing messages and the done mark durable.
	Complete(ctx context.Context, c *Claim, out []*nats.Msg) error
	// Release gives the event back. With a failure the attempt is recorded;
	// with nil it is not spent. later, if not nil, is a message that will bring
	// the event back: it becomes durable before the mark, or with it.
	Release(ctx context.Context, c *Claim, failure *event.Attempt, later *nats.Msg) error
	// Park makes the dead letter and the parked mark durable, in this order.
	// The failure that led here joins the mark's history; nil if it is there already.
	Park(ctx context.Context, c *Claim, failure *event.Attempt, letter *nats.Msg) error

	// Prepare checks, before the first event, that the ledger can keep its
	// promise: its storage is there, and it remembers an event for longer than
	// horizon, the longest time over which one can be retried. Errors match
	// [ErrConfig], [ErrNoBucket], [ErrNoStream] or [bus.ErrUnavailable], or are
	// the database's.
	Prepare(ctx context.Context, horizon time.Duration) error
	// Health returns nil, or what is wrong with the ledger's storage as a whole.
	// It turns nil again by itself.
	Health() error
	// Run does what the ledger has to do beside the other calls, until ctx ends:
	// outbox.Ledger publishes rows. The consumer runs it, until the last handler has returned.
	Run(ctx context.Context) error
	// Partitions is the ledger itself if its consumers share their events by
	// partition, and nil if their replicas compete for them.
	Partitions() *Partitions
	// Retention is how long an event is remembered after its last change.
	Retention() time.Duration
	// Now reads the clock by which the retention is measured. It may be slow by
	// the time that the answer takes.
	Now(ctx context.Context) (time.Time, error)
	// Remember adds to the subjects of which c may have handled events, each as
	// "EVENTS events.order.placed.v1.>" (stream and filter). They are kept for ever:
	// when the durable at the server is lost, they tell that old events were handled.
	Remember(ctx context.Context, c event.Consumer, subjects []string) error
	// Subjects returns what Remember was told for c; false if it was told nothing.
	Subjects(ctx context.Context, c event.Consumer) ([]string, bool, error)
}

// Request asks for an event.
type Request struct {
	Consumer event.Consumer
	Key      event.EventKey
	// Replay is 0 for an original delivery and n for the n-th replay from the
	// dead letters. A parked event is claimable by a replay newer than the
	// one it was parked by, with fresh attempts.
	Replay int
	// Redelivered says that the event was handed out before, so that there
	// may be something to know of it. A ledger that works without claims looks
	// only then.
	Redelivered bool
	// Tenure is whose the event is, and Sequence that of its message, which has
	// entered the tenure: for [Partitions]. Other ledgers need neither.
	Tenure   *Tenure
	Sequence uint64
	// Lease is how long the claim holds without an Extend. At least one second.
	Lease time.Duration
}

// minLease keeps a lease well above the time a round trip takes.
const minLease = time.Second

func (r Request) validate() error {
	if r.Lease < minLease {
		return fmt.Errorf("%w: lease %v: want at least %v", ErrConfig, r.Lease, minLease)
	}
	if r.Replay < 0 {
		return fmt.Errorf("%w: replay %d: want 0 or more", ErrConfig, r.Replay)
	}
	return nil
}

// Status is what a claim found.
type Status int

// The four answers to a claim.
const (
	Claimed Status = iota + 1 // this worker owns the event and runs the handler
	Done                      // it has taken effect before: acknowledge
	Busy                      // another worker owns it: come back, never acknowledge
	Parked                    // it lies in the dead letters: acknowledge
)

// String is the status as a lower-case word.
func (s Status) String() string {
	switch s {
	case Claimed:
		return "claimed"
	case Done:
		return "done"
	case Busy:
		return "busy"
	case Parked:
		return "parked"
	}
	return fmt.Sprintf("status(%d)", int(s))
}

// Claim is one worker's hold on an event, for the ledger that it came from.
type Claim struct {
	Request Request
	Status  Status
	// RetryIn is, when Busy, how long until the owner's lease can end.
	RetryIn time.Duration
	// Attempts are the failed attempts recorded before this claim, oldest
	// first (the first and the latest ones when there are many); fresh after a replay.
	Attempts []event.Attempt
	// Failures counts the failed attempts before this claim, also those no longer in Attempts.
	Failures int
	// Crashes counts earlier claims that ended without an outcome.
	Crashes int
	// Transaction is where the event's handler may work if the ledger has
	// transactions; nil for other ledgers. The handler gets the context that
	// Transaction.Context returns.
	Transaction interface {
		Context(ctx context.Context) context.Context
	}

	key     string          // of the mark
	binary  event.BinaryKey // of an event on a partition
	started bool            // a page says that the event starts; likewise

	mu       sync.Mutex // one write of this claim at a time; guards what follows
	revision uint64     // of the mark, as far as this worker knows; 0: not written yet
	record   record     // the mark's content at that revision
	renewed  time.Time  // local clock, taken before the last successful renewal was sent
}

// Mark is what a ledger knows of one event, for people (dlq show, a second replay).
type Mark struct {
	State    string          `json:"state"` // "claimed", "waiting", "done", "parked" or "discarded"
	Replay   int             `json:"replay"`
	Failures int             `json:"failures"`
	Crashes  int             `json:"crashes"`
	Attempts []event.Attempt `json:"attempts,omitempty"`
	First    *event.Attempt  `json:"first_failure,omitempty"` // kept across replays
	At       time.Time       `json:"at"`                      // of the last change, by the server's clock
}
