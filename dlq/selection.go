package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

// Selection says which letters to replay or discard, in exactly one of three
// ways; a zero Selection is refused, so that a forgotten filter is not "all".
type Selection struct {
	// IDs as in [Queue.Get].
	IDs []string
	// Filter chooses by content; the zero Filter chooses nothing here.
	Filter Filter
	// All chooses every letter.
	All bool
}

func (s Selection) validate() error {
	ways := 0
	for _, used := range []bool{len(s.IDs) > 0, s.Filter != Filter{}, s.All} {
		if used {
			ways++
		}
	}
	switch ways {
	case 0:
		return fmt.Errorf("%w: nothing is selected: name ids, a filter or all", ErrSelection)
	case 1:
		return s.Filter.validate()
	default:
		return fmt.Errorf("%w: name either ids, or a filter, or all", ErrSelection)
	}
}

// Status is what became of one selected letter.
type Status string

// The statuses.
const (
	Replayed       Status = "replayed"        // sent to its consumer; the letter is gone
	Discarded      Status = "discarded"       // the letter is gone for good
	AlreadyHandled Status = "already_handled" // the event had taken effect; the letter is gone
	InProgress     Status = "in_progress"     // its consumer has the event now; nothing was done
	NoConsumer     Status = "no_consumer"     // nobody would get it; nothing was done
	Refused        Status = "refused"         // see Result.Err; nothing was done
	NotFound       Status = "not_found"       // there is no such letter (any more)
	Failed         Status = "failed"          // see Result.Err; doing it again is safe
	WouldReplay    Status = "would_replay"    // dry run
	WouldDiscard   Status = "would_discard"   // dry run
)

// Result is what became of one selected letter.
type Result struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	// Sequence is the letter's in the dead-letter stream, 0 when there was none.
	Sequence uint64 `json:"sequence,omitempty"`
	// Err says why, for no consumer, refused, not found and failed.
	Err error `json:"-"`
	// Message is the text of Err.
	Message string `json:"error,omitempty"`
}

// Summary counts results.
type Summary struct {
	// Selected letters, also those that were not reached.
	Selected int            `json:"selected"`
	Counts   map[Status]int `json:"counts"`
}

// Reached is how many of the selected letters have a result.
func (s Summary) Reached() int {
	n := 0
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// target is one selected letter; sequence 0 when only its id is known.
type target struct {
	id       string
	sequence uint64
	older    []uint64
}

// action is what is done with one letter of the stream; on an error it says
// which of no consumer, refused, not found and failed it is.
type action func(ctx context.Context, stream jetstream.Stream, l *letter) (Status, error)

// walk calls do for every selected letter, oldest first, and reports the
// results. What is stored after its start is not selected. It stops when ctx
// ends, never in the middle of a letter, or at an error that the next letter
// would meet too.
func (q *Queue) walk(ctx context.Context, s Selection, report func(Result), do action) (Summary, error) {
	sum := Summary{Counts: map[Status]int{}}
	if err := s.validate(); err != nil {
		return sum, err
	}
	v, targets, err := q.targets(ctx, s)
	if err != nil {
		return sum, err
	}
	sum.Selected = len(targets)
	var stop error
	for _, t := range targets {
		if stop = ctx.Err(); stop != nil {
			break
		}
		r := q.handle(ctx, v.stream, t, do)
		if stop = ctx.Err(); stop != nil && errors.Is(r.Err, stop) {
			break // before anything was done
		}
		sum.Counts[r.Status]++
		if report != nil {
			report(r)
		}
		if hopeless(r.Err) {
			stop = r.Err
			break
		}
	}
	if stop != nil && (sum.Reached() < sum.Selected || hopeless(stop)) {
		return sum, fmt.Errorf("dlq: stopped after %d of %d: %w", sum.Reached(), sum.Selected, stop)
	}
	return sum, nil
}

// handle opens a target's letter and does what is to be done with it.
func (q *Queue) handle(ctx context.Context, stream jetstream.Stream, t target, do action) Result {
	r := Result{ID: t.id, Sequence: t.sequence}
	l, err := q.open(ctx, stream, t)
	switch {
	case err == nil:
		r.ID, r.Sequence = l.entry.ID, l.entry.Sequence
		r.Status, r.Err = do(ctx, stream, l)
	case errors.Is(err, ErrNotFound):
		r.Status, r.Err = q.absent(ctx, t.id, err)
	default:
		r.Status, r.Err = Failed, err
	}
	if r.Err != nil {
		r.Message = r.Err.Error()
	}
	return r
}

// hopeless reports an error that every further letter would meet.
func hopeless(err error) bool {
	for _, e := range []error{bus.ErrUnavailable, bus.ErrClosed, bus.ErrNoStream, bus.ErrDenied, bus.ErrStreamFull} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// targets resolves a selection, about 150 bytes of memory a letter.
func (q *Queue) targets(ctx context.Context, s Selection) (*view, []target, error) {
	var targets []target
	if len(s.IDs) > 0 {
		for _, id := range s.IDs {
			if _, _, err := parseID(id); err != nil {
				return nil, nil, err
			}
			targets = append(targets, target{id: id})
		}
		stream, err := q.bus.Stream(ctx, q.names.DLQStream())
		if err != nil {
			return nil, nil, q.wrap("look", err)
		}
		return &view{stream: stream}, targets, nil
	}
	v, err := q.look(ctx, consumerSubject(q.names, ""))
	if err != nil {
		return nil, nil, err
	}
	older := map[string][]uint64{}
	for subject, sequence := range v.older {
		c, _, k := splitSubject(q.names, subject)
		older[entryID(c, k)] = append(older[entryID(c, k)], sequence)
	}
	err = q.scan(ctx, v, v.all(), s.Filter, func(e Entry) error {
		targets = append(targets, target{id: e.ID, sequence: e.Sequence, older: older[e.ID]})
		return nil
	})
	return v, targets, err
}

// open reads a target's letter.
func (q *Queue) open(ctx context.Context, stream jetstream.Stream, t target) (*letter, error) {
	if t.sequence == 0 {
		return q.find(ctx, t.id)
	}
	l, err := q.read(ctx, stream, t.sequence)
	if err != nil {
		return nil, err
	}
	l.older = t.older
	return l, nil
}

// absent says what became of an event that has no letter.
func (q *Queue) absent(ctx context.Context, id string, notFound error) (Status, error) {
	consumer, key, err := parseID(id)
	if err != nil {
		return NotFound, notFound
	}
	m, known, err := q.mark(ctx, consumer, key)
	switch {
	case err != nil:
		return Failed, err
	case known && m.State == StateDone:
		return AlreadyHandled, nil
	case known && m.underWay():
		return InProgress, nil
	case known && m.State == StateDiscarded:
		return NotFound, fmt.Errorf("%w: it was discarded at %s", notFound, m.At.UTC().Format(time.RFC3339))
	default:
		return NotFound, notFound
	}
}

// remove deletes a letter, and older ones of the same event under other
// reasons, by sequence: a letter that came in meanwhile stays.
func (q *Queue) remove(ctx context.Context, stream jetstream.Stream, l *letter) error {
	for _, sequence := range append(l.older, l.entry.Sequence) {
		if sequence == 0 {
			continue
		}
		err := q.bus.Ask(ctx, "STREAM.MSG.DELETE."+q.names.DLQStream(), func(ctx context.Context) error {
			return stream.DeleteMsg(ctx, sequence)
		})
		if err == nil {
			continue
		}
		if _, readErr := q.read(ctx, stream, sequence); errors.Is(readErr, ErrNotFound) {
			continue // replaced or removed by somebody else
		}
		return q.wrap("delete letter of "+l.entry.ID, err)
	}
	return nil
}
