package dlq

import (
	"cmp"
	"context"
)

const (
	defaultLimit = 50
	maxLimit     = 10_000
)

// PageOptions choose a page of a list.
type PageOptions struct {
	// Limit is the most entries to return, at most 10,000. Defaults to 50.
	Limit int
	// Cursor is the Next of the page before. Defaults to the newest entry.
	Cursor uint64
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

// List returns the entries that match f, newest first, and changes nothing at
// the server. Counts are exact: those by consumer and reason come from the
// server's index of subjects, and only a page of headers is read; for other
// filters the headers of all letters are read, and a page of them kept. Errors
// match [ErrSelection], [bus.ErrNoStream] or [bus.ErrUnavailable].
func (q *Queue) List(ctx context.Context, f Filter, o PageOptions) (Page, error) {
	if err := f.validate(); err != nil {
		return Page{}, err
	}
	v, err := q.look(ctx, consumerSubject(q.names, ""))
	if err != nil {
		return Page{}, err
	}
	limit := min(cmp.Or(max(0, o.Limit), defaultLimit), maxLimit)
	page := Page{Entries: []Entry{}, Total: len(v.newest)}
	count := !f.bySubject()
	if !count {
		page.Matching = q.countSubjects(v, f)
	}
	// Walk back from the end in steps that grow, until there is one entry
	// more than the page holds; to the beginning if entries must be counted.
	in := span{to: v.last}
	if o.Cursor != 0 && !count {
		in.to = min(in.to, o.Cursor-1)
	}
	for width := uint64(4 * limit); in.to >= v.first && in.to > 0; width *= 4 { //nolint:gosec // positive
		in.from = max(v.first, in.to-min(in.to-1, width-1))
		step := newest{limit: limit + 1 - len(page.Entries)}
		err := q.scan(ctx, v, in, f, func(e Entry) error {
			if count {
				page.Matching++
			}
			if o.Cursor == 0 || e.Sequence < o.Cursor {
				step.add(e)
			}
			return nil
		})
		if err != nil {
			return Page{}, err
		}
		page.Entries = step.appendTo(page.Entries)
		if len(page.Entries) > limit && !count {
			break
		}
		in.to = in.from - 1
	}
	if len(page.Entries) > limit {
		page.Entries = page.Entries[:limit]
		page.Next = page.Entries[limit-1].Sequence
	}
	return page, nil
}

// countSubjects counts the entries of v that match a filter by subject.
func (q *Queue) countSubjects(v *view, f Filter) int {
	n := 0
	for _, subject := range v.newest {
		consumer, reason, _ := splitSubject(q.names, subject)
		if f.matches(q.names, &Entry{Consumer: consumer, Reason: reason}) {
			n++
		}
	}
	return n
}

// newest keeps the last limit entries added to it.
type newest struct {
	limit int
	added int
	ring  []Entry
}

func (n *newest) add(e Entry) {
	switch {
	case n.limit == 0:
	case len(n.ring) < n.limit:
		n.ring = append(n.ring, e)
	default:
		n.ring[n.added%n.limit] = e
	}
	n.added++
}

// appendTo appends them to entries, the last one first.
func (n *newest) appendTo(entries []Entry) []Entry {
	for i := range len(n.ring) {
		entries = append(entries, n.ring[(n.added-1-i)%len(n.ring)])
	}
	return entries
}
