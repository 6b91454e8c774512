package dlq

import (
	"context"
	"slices"
)

// maxLimit is the most entries of a page: it is kept in memory.
const maxLimit = 10_000

// List returns the entries that match f, newest first, at most 10,000. Counts are
// exact: those by consumer and reason come from the server's index of subjects,
// and only a page of headers is read; for other filters the headers of all
// letters are read, and a page of them kept.
func (s *Stream) List(ctx context.Context, f Filter, limit int, cursor uint64) (Page, error) {
	if err := f.validate(); err != nil {
		return Page{}, err
	}
	v, err := s.view(ctx, consumerSubject(s.names, ""))
	if err != nil {
		return Page{}, err
	}
	limit = min(limit, maxLimit)
	page := Page{Entries: []Entry{}, Total: len(v.newest)}
	count := !f.bySubject()
	if !count {
		page.Matching = s.countSubjects(v, f)
	}
	// Walk back from the end in steps that grow, until there is one entry
	// more than the page holds; to the beginning if entries must be counted.
	in := span{to: v.last}
	if cursor != 0 && !count {
		in.to = min(in.to, cursor-1)
	}
	for width := uint64(4 * limit); in.to >= v.first && in.to > 0; width *= 4 { //nolint:gosec // positive
		in.from = max(v.first, in.to-min(in.to-1, width-1))
		var step []Entry // the newest ones of it, oldest first
		room := limit + 1 - len(page.Entries)
		err := s.scan(ctx, v, in, f, func(e Entry) error {
			if count {
				page.Matching++
			}
			if cursor == 0 || e.Sequence < cursor {
				step = append(step, e)
			}
			if len(step) > 2*room {
				step = append(step[:0], step[len(step)-room:]...)
			}
			return nil
		})
		if err != nil {
			return Page{}, err
		}
		step = step[max(0, len(step)-room):]
		slices.Reverse(step)
		page.Entries = append(page.Entries, step...)
		if len(page.Entries) > limit && !count {
			break
		}
		in.to = in.from - 1
	}
	if len(page.Entries) > limit {
		page.Entries = page.Entries[:limit]
		page.Next = page.Entries[limit-1].Sequence
	}
	follow := s.follower()
	for i := range page.Entries {
		if err := follow.look(ctx, &page.Entries[i]); err != nil {
			return Page{}, err
		}
	}
	return page, nil
}

// countSubjects counts the entries of v that match a filter by subject.
func (s *Stream) countSubjects(v *view, f Filter) int {
	n := 0
	for _, subject := range v.newest {
		consumer, reason, _ := splitSubject(s.names, subject)
		if f.Matches(s.names, Entry{Consumer: consumer, Reason: reason}) {
			n++
		}
	}
	return n
}
