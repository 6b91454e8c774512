package dlq

import (
	"context"
	"strings"

	"github.com/farandole/farandole/event"
)

// Store is a place where dead letters lie. [Stream] is one; the parked rows of
// an outbox are another. A [Queue] works on both through it.
type Store interface {
	// List returns at most limit letters that match f, newest first, and counts
	// all that match. cursor is the Next of the page before, 0 for the first page.
	List(ctx context.Context, f Filter, limit int, cursor uint64) (Page, error)
	// Scan visits the letters that match f, oldest first. Records are complete
	// when whole is set; else they may have no more than their Entry. It ends
	// with the first error of visit and returns that error as it is. It may pass
	// over what is removed or stored while it runs.
	Scan(ctx context.Context, f Filter, whole bool, visit func(Record) error) error
	// Get returns what is known of one event; [ErrNotFound] means nothing.
	Get(ctx context.Context, id string) (Case, error)
	// Replay has the event of one letter handled again. The letter is gone when it is.
	// What has become of it is in the result. An error says besides that every
	// further letter would meet it too.
	Replay(ctx context.Context, r Ref, o ReplayOptions) (Result, error)
	// TakeBack ends a replay that nobody has begun. Result and error are as for Replay.
	TakeBack(ctx context.Context, r Ref, o TakeBackOptions) (Result, error)
	// Outcome says what has become of a replay, as Replay has returned it.
	Outcome(ctx context.Context, r Result) (Outcome, error)
	// Workers returns how many processes are there to handle replays to a consumer.
	Workers(ctx context.Context, c event.Consumer) (int, error)
	// Discard removes one letter for good. Result and error are as for Replay.
	Discard(ctx context.Context, r Ref, o DiscardOptions) (Result, error)
}

// ConsumerOutbox stands where a dead letter has its consumer, for the parked
// rows of an outbox: the ID of such a row is outbox.<message id>.
const ConsumerOutbox event.Consumer = "outbox"

// Ref names one letter in its store.
type Ref struct {
	ID string
	// Sequence is the one that [Entry] has, 0 when only the ID is known: then it
	// is the letter that the store has of it by now.
	Sequence uint64
	// older are the sequences of letters that this one replaces.
	older []uint64
}

// Page is a part of a list, newest first.
type Page struct {
	Entries []Entry `json:"entries"`
	// Matching counts the entries that match the filter, on all pages.
	Matching int `json:"matching"`
	// Total counts all entries.
	Total int `json:"total"`
	// Next is the cursor of the next page, 0 on the last one.
	Next uint64 `json:"next,omitempty"`
}

// Case is what is known of one event for one consumer.
type Case struct {
	ID string `json:"id"`
	// Letter is nil when there is none (any more): the ledger alone knows.
	Letter *Record `json:"letter,omitempty"`
	// Mark is what the ledger says, nil when it says nothing.
	Mark *Mark `json:"ledger,omitempty"`
	// Verdict is one sentence about both.
	Verdict string `json:"verdict"`
}

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// DryRun says what would happen and changes nothing.
	DryRun bool
	// Rate is the most replays a second that [Queue.Replay] makes. Defaults to no limit.
	Rate float64
	// Force replays events that the ledger has no mark of, or says are in
	// progress. Such an event can take effect twice if it did before and its
	// mark has expired. An event that is done is never replayed. Force also
	// stores the replay where no consumer would get it: the consumer's durable
	// may be made later.
	Force bool
	// By is who replays, as in "ada@host", for the letter. Defaults to nobody.
	By string
	// To is the consumer to which letters are given before they are replayed: that of a
	// service under its new name. The result has the letter's new ID. Its old consumer
	// does not get it any more. Defaults to the consumer that failed.
	To event.Consumer
	// Wait has [Queue.Replay] wait until each replay has come to an end: it reports a
	// letter when it is sent and again when it is [Handled], [FailedAgain] or
	// [TakenBack]. It ends with ctx, or with [ErrNobody] when for 5 s no worker was there.
	Wait bool
	// Canary replays 1, then 10, then 100 letters and so on, and waits each time. When a
	// greater share of these than MaxFailed has failed again it stops, with [ErrFailedAgain].
	Canary    bool
	MaxFailed float64
}

// TakeBackOptions say how to take replays back.
type TakeBackOptions struct {
	// DryRun says what would happen and changes nothing.
	DryRun bool
}

// DiscardOptions say how to discard.
type DiscardOptions struct {
	// DryRun says what would happen and changes nothing.
	DryRun bool
	// Force removes letters of events that are in progress; if they fail
	// again, a new letter comes.
	Force bool
}

// Result is what became of one letter.
type Result struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	// Sequence is the letter's in the dead-letter stream, 0 when there was none.
	Sequence uint64 `json:"sequence,omitempty"`
	// Replay is the number of the replay, for replayed and what has become of it.
	Replay int `json:"replay,omitempty"`
	// count is how often the event had been dead-lettered then.
	count int
	// Selected is how many letters are selected by now, this one among them.
	Selected int `json:"-"`
	// Ends says that the run ends with Err, which it returns, too.
	Ends bool `json:"-"`
	// Err says why, for no consumer, refused, not found and failed.
	Err error `json:"-"`
	// Message is the text of Err. [Queue] fills it in.
	Message string `json:"error,omitempty"`
}

// Status is what became of one letter.
type Status string

// Words is the status for people, as in "already handled".
func (s Status) Words() string { return strings.ReplaceAll(string(s), "_", " ") }

// The statuses.
const (
	Replayed       Status = "replayed"        // sent to its consumer; the letter says so until it is handled
	Pending        Status = "pending"         // a parked row that a relay publishes again; it says so until it is published
	Discarded      Status = "discarded"       // the letter is gone for good
	AlreadyHandled Status = "already_handled" // the event had taken effect; the letter is gone
	InProgress     Status = "in_progress"     // it is being replayed, or its consumer has it; nothing was done
	NoConsumer     Status = "no_consumer"     // nobody would get it; nothing was done
	Refused        Status = "refused"         // see Result.Err; nothing was done
	NotFound       Status = "not_found"       // there is no such letter (any more)
	Failed         Status = "failed"          // see Result.Err; doing it again is safe
	Handled        Status = "handled"         // the replay has taken effect; the letter is gone
	FailedAgain    Status = "failed_again"    // it is one letter again, with its story
	Waiting        Status = "waiting"         // replayed, and had not ended when the wait was over
	TakenBack      Status = "taken_back"      // the replay is taken back; the letter is as before
	NotReplayed    Status = "not_replayed"    // there is no replay to take back; nothing was done
	Imported       Status = "imported"        // it is in the store now
	Exists         Status = "exists"          // there is a letter of this id; nothing was done
	WouldReplay    Status = "would_replay"    // dry run
	WouldTakeBack  Status = "would_take_back" // dry run
	WouldDiscard   Status = "would_discard"   // dry run
)
