package dlq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Queue reads and empties the dead letters of one system. It keeps no state
// and runs nothing in the background; it is safe for concurrent use, also by
// several processes.
type Queue struct {
	bus   *bus.Bus
	names event.Names
	marks Marks
}

// Open returns the queue of b's system. marks is the ledger of the consumers;
// nil means that none can be asked: then replays need ReplayOptions.Force. It
// does not talk to the server.
func Open(b *bus.Bus, marks Marks) *Queue {
	return &Queue{bus: b, names: b.Names(), marks: marks}
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

// Get returns the case of an event. The id is <consumer>.<event key>, or the
// event key alone when only one consumer has a letter of it ([ErrAmbiguous]
// otherwise). An event that was replayed has no letter but a mark, for as long
// as the ledger keeps it; [ErrNotFound] means neither.
func (q *Queue) Get(ctx context.Context, id string) (Case, error) {
	c := Case{ID: id}
	l, err := q.find(ctx, id)
	switch {
	case err == nil:
		r := l.record()
		c.ID, c.Letter = l.entry.ID, &r
	case !errors.Is(err, ErrNotFound):
		return Case{}, err
	}
	consumer, key, err := parseID(c.ID)
	if err != nil {
		return Case{}, err
	}
	mark, known, err := q.mark(ctx, consumer, key)
	if err != nil {
		return Case{}, err
	}
	if known {
		c.Mark = &mark
	}
	if c.Letter == nil && c.Mark == nil {
		return Case{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	c.Verdict = c.verdict()
	if !known || !mark.underWay() {
		return c, nil
	}
	taken, err := q.takes(ctx, consumer, q.names.RedriveFilter(consumer))
	if err != nil {
		return Case{}, err
	}
	if !taken {
		c.Verdict += fmt.Sprintf("; no consumer %s exists: start it, and the event goes on", consumer)
	}
	return c, nil
}

func (c Case) verdict() string {
	m := c.Mark
	if m == nil {
		return "dead-lettered; the ledger keeps no mark of it, so a replay must be forced"
	}
	var sb strings.Builder
	by := "the original delivery"
	if m.Replay > 0 {
		by = fmt.Sprintf("replay %d", m.Replay)
	}
	at := m.At.UTC().Format(time.RFC3339)
	switch {
	case m.State == StateDone:
		fmt.Fprintf(&sb, "handled by %s at %s", by, at)
	case m.State == StateDiscarded:
		fmt.Fprintf(&sb, "discarded at %s", at)
	case m.underWay():
		fmt.Fprintf(&sb, "in progress (%s, %s since %s)", by, m.State, at)
	case c.Letter == nil:
		fmt.Fprintf(&sb, "parked by %s at %s, but its letter has been removed", by, at)
	default:
		fmt.Fprintf(&sb, "parked by %s at %s", by, at)
	}
	if m.First != nil {
		fmt.Fprintf(&sb, "; first failure %s: %s: %s", m.First.At.UTC().Format(time.RFC3339), m.First.Class, m.First.Error)
	}
	return sb.String()
}

// find reads the newest letter of an id. It matches ErrNotFound, ErrAmbiguous or ErrSelection.
func (q *Queue) find(ctx context.Context, id string) (*letter, error) {
	consumer, key, err := parseID(id)
	if err != nil {
		return nil, err
	}
	v, err := q.look(ctx, q.names.DeadLetterFilter(consumer, "", key))
	if err != nil {
		return nil, err
	}
	switch len(v.newest) {
	case 0:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	case 1:
	default:
		return nil, fmt.Errorf("%w: %s is one of %s", ErrAmbiguous, id, strings.Join(sortedKeys(v.newest), ", "))
	}
	for _, subject := range v.newest {
		m, err := q.bus.Read(ctx, v.stream, subject)
		if err != nil {
			return nil, q.wrap("read "+subject, err)
		}
		if m == nil { // removed since
			break
		}
		l := q.letterOf(m)
		for _, sequence := range v.older {
			l.older = append(l.older, sequence)
		}
		return l, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
}

// keyPattern is what event keys look like. Other tools may store other letters.
var keyPattern = regexp.MustCompile(`^[a-z2-7]{32}$`)

// mark asks the ledger, which knows nothing of names that no consumer writes.
func (q *Queue) mark(ctx context.Context, c event.Consumer, k event.EventKey) (Mark, bool, error) {
	if legal := c.Validate() == nil && keyPattern.MatchString(string(k)); !legal || q.marks == nil {
		return Mark{}, false, nil
	}
	m, known, err := q.marks.Mark(ctx, c, k)
	if err != nil {
		return Mark{}, false, fmt.Errorf("dlq: ask the ledger for %s: %w", entryID(c, k), err)
	}
	return m, known, nil
}
