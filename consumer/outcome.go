package consumer

import "time"

// Outcome is how the journey of one delivery ended, as counted in [Stats] and
// the metric farandole_deliveries_total.
type Outcome int

// The outcomes.
const (
	Handled   Outcome = iota // the step is durable
	Skipped                  // handled, and the handler returned Skip
	Duplicate                // had taken effect, or lies in the dead letters
	Busy                     // another worker has it; this copy comes again
	Retried                  // failed, comes again
	ParkedNow                // dead-lettered
	Released                 // given back without spending an attempt
	Lost                     // another worker took it over
	Dropped                  // an operator has dropped its type
	outcomes
)

var outcomeNames = [...]string{
	Handled: "handled", Skipped: "skipped", Duplicate: "duplicate", Busy: "busy",
	Retried: "retried", ParkedNow: "parked", Released: "released", Lost: "lost", Dropped: "dropped",
}

// String returns the outcome's metric label.
func (o Outcome) String() string { return outcomeNames[o] }

func handledOr(skipped bool) Outcome {
	if skipped {
		return Skipped
	}
	return Handled
}

// How long a delivery given back stays away.
const (
	busyRetry    = time.Second            // at most, while another worker has it
	suspectRetry = 250 * time.Millisecond // while another suspect of a crash runs
	stuckRetry   = time.Second            // while a handler of its key ignores its cancellation
	parkRetry    = 6 * time.Second        // while dead letters cannot be stored
	staleRetry   = 25 * time.Millisecond  // while others keep changing the state it needs; doubled each time
	closedRetry  = time.Second            // on average, while ledger or stream do not answer
)
