package dlq

import (
	"context"
	"time"

	"github.com/farandole/farandole/event"
)

// Marks is what the queue asks about consumers: their ledger, and whether they are there.
// The ledgers of package dedup have these methods but for Workers, with their own
// Mark, which converts to this one.
type Marks interface {
	// Mark returns what the ledger knows of an event; false when it knows nothing.
	Mark(ctx context.Context, c event.Consumer, k event.EventKey) (Mark, bool, error)
	// Discard closes a parked event for good.
	Discard(ctx context.Context, c event.Consumer, k event.EventKey) error
	// TakeBack has replays of a parked event, up to this one, not handled any more. It
	// returns false if the event is not parked.
	TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error)
	// Workers returns how many processes run a consumer, paused or not.
	Workers(ctx context.Context, c event.Consumer) (int, error)
}

// Mark is a ledger's knowledge of one event for one consumer.
type Mark struct {
	State    string          `json:"state"`  // one of State…
	Replay   int             `json:"replay"` // 0 for the original delivery
	Failures int             `json:"failures"`
	Crashes  int             `json:"crashes"`
	Attempts []event.Attempt `json:"attempts,omitempty"`
	First    *event.Attempt  `json:"first_failure,omitempty"` // kept across replays
	At       time.Time       `json:"at"`
}

// States of a mark.
const (
	StateClaimed = "claimed" // being handled
	StateWaiting = "waiting" // between two attempts
	StateDone    = "done"    // has taken effect
	StateParked  = "parked"  // lies in the dead letters
	// StateDiscarded is left by Discard.
	StateDiscarded = "discarded"
)

// underWay reports whether the event is still with its consumer: a letter of
// it is the trace of a crash between parking and marking, and will be replaced.
func (m Mark) underWay() bool { return m.State == StateClaimed || m.State == StateWaiting }
