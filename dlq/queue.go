package dlq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/farandole/farandole/bus"
)

// Queue is all dead letters of one system: those of its stream and, if it has
// been told of an outbox, the parked rows of that. It keeps no state and runs
// nothing in the background; it is safe for concurrent use, also by several
// processes.
//
// Where there is an outbox its rows come first, for they can be seen to while
// NATS is down. When the stream then cannot be reached, a method returns what it
// has of the rows together with the error.
type Queue struct {
	stream func() (*Stream, error)
	outbox Store // nil if there is none
}

// Open returns the dead letters of the stream of b's system. marks is the ledger
// of the consumers; nil means that none can be asked: then replays need
// ReplayOptions.Force. It does not talk to the server.
func Open(b *bus.Bus, marks Marks) *Queue {
	s := NewStream(b, marks)
	return &Queue{stream: func() (*Stream, error) { return s, nil }}
}

// Join returns the dead letters of an outbox and of a stream. stream is called
// whenever something is to be done with letters of the stream, so that the
// connection can be made when the first method needs it.
func Join(outbox Store, stream func() (*Stream, error)) *Queue {
	return &Queue{stream: stream, outbox: outbox}
}

// part is what a selection chooses in one store.
type part struct {
	open func() (Store, error)
	Selection
}

// parts returns the stores that a selection may be about, the outbox first.
func (q *Queue) parts(ctx context.Context, s Selection) (parts []part, err error) {
	rows, letters := s, s
	rows.IDs, letters.IDs = nil, nil
	for _, id := range s.IDs {
		row, err := q.ofOutbox(ctx, id)
		if err != nil {
			return nil, err
		}
		if row {
			rows.IDs = append(rows.IDs, id)
		} else {
			letters.IDs = append(letters.IDs, id)
		}
	}
	byID := len(s.IDs) > 0
	if q.outbox != nil && (!byID || len(rows.IDs) > 0) {
		parts = append(parts, part{func() (Store, error) { return q.outbox, nil }, rows})
	}
	if (q.outbox == nil || s.Filter.Consumer != ConsumerOutbox) && (!byID || len(letters.IDs) > 0) {
		parts = append(parts, part{func() (Store, error) { return q.stream() }, letters})
	}
	return parts, nil
}

// saysOutbox reports whether an id says that it is a parked row's.
func (q *Queue) saysOutbox(id string) bool {
	return q.outbox != nil && strings.HasPrefix(id, entryID(ConsumerOutbox, ""))
}

// ofOutbox reports whether an id is a parked row's. An event key alone, or how one begins,
// may be either store's, and is to be of one letter only.
func (q *Queue) ofOutbox(ctx context.Context, id string) (bool, error) {
	if q.outbox == nil || strings.Contains(id, ".") {
		return q.saysOutbox(id), nil
	}
	row, err := q.outbox.Get(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	var stream *Stream
	if err == nil {
		stream, err = q.stream()
	}
	if err != nil {
		return false, err
	}
	letter, err := stream.Get(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	default:
		return false, Ambiguous(id, []string{row.ID, letter.ID})
	}
}

// each calls do for every store that may have letters which f matches.
func (q *Queue) each(ctx context.Context, f Filter, do func(Store) error) error {
	parts, err := q.parts(ctx, Selection{Filter: f})
	if err != nil {
		return err
	}
	for _, p := range parts {
		store, err := p.open()
		if err == nil {
			err = do(store)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// PageOptions choose a page of a list.
type PageOptions struct {
	// Limit is the most entries to return, of each store. Of the stream they are
	// at most 10,000. Defaults to 50.
	Limit int
	// Cursor is the Next of the page before. Defaults to the newest entry.
	Cursor uint64
}

// List returns the entries that match f, newest first, and changes nothing.
// Parked rows come before the first page of letters, as many as the limit allows,
// and are counted on every page; a cursor is about letters, unless f chooses
// [ConsumerOutbox]. Errors match [ErrSelection], [bus.ErrNoStream] or
// [bus.ErrUnavailable], or are those of the outbox.
func (q *Queue) List(ctx context.Context, f Filter, o PageOptions) (Page, error) {
	limit := cmp.Or(max(0, o.Limit), 50)
	all := Page{Entries: []Entry{}}
	parts, err := q.parts(ctx, Selection{Filter: f})
	if err != nil {
		return all, err
	}
	for i, p := range parts {
		last := i == len(parts)-1
		cursor := o.Cursor
		if !last {
			cursor = 0
		}
		store, err := p.open()
		if err != nil {
			return all, err
		}
		page, err := store.List(ctx, f, limit, cursor)
		if err != nil {
			return all, err
		}
		if last || o.Cursor == 0 {
			all.Entries = slices.Concat(all.Entries, page.Entries)
		}
		if last {
			all.Next = page.Next
		}
		all.Matching += page.Matching
		all.Total += page.Total
	}
	return all, nil
}

// Get returns the case of an event. The id is <consumer>.<event key>, outbox.<message id>,
// the event key or message id alone when only one letter has it, or as much of these from
// the beginning as only one letter has ([ErrAmbiguous] otherwise). An event that was handled
// after a replay has no letter but a mark, for as long as the ledger keeps it; [ErrNotFound]
// means neither.
func (q *Queue) Get(ctx context.Context, id string) (Case, error) {
	parts, err := q.parts(ctx, Selection{IDs: []string{id}})
	if err != nil {
		return Case{}, err
	}
	store, err := parts[0].open()
	if err != nil {
		return Case{}, err
	}
	return store.Get(ctx, id)
}

// Export writes the letters that match f to w as JSON lines, one [Record] a
// line, those of a store oldest first, and returns how many. What is removed
// meanwhile is left out; nothing is changed. An error of w is returned wrapped.
func (q *Queue) Export(ctx context.Context, w io.Writer, f Filter) (int, error) {
	out := json.NewEncoder(w)
	n := 0
	err := q.each(ctx, f, func(s Store) error {
		return s.Scan(ctx, f, true, func(r Record) error {
			if err := out.Encode(r); err != nil {
				return fmt.Errorf("dlq: export: %w", err)
			}
			n++
			return nil
		})
	})
	return n, err
}
