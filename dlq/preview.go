package dlq

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/farandole/farandole/event"
)

// Preview is what a selection chooses, for a question before it is changed.
type Preview struct {
	Total int
	// Kinds are the kinds of failure by consumer, the most frequent first.
	Kinds []Kind
	// Examples are three of the letters.
	Examples []Entry
}

// Kind is one kind of failure of one consumer.
type Kind struct {
	Consumer    event.Consumer
	Fingerprint string
	Type        event.Type
	Class       string
	Error       string // with placeholders
	Count       int
}

// Preview tells what a selection chooses. Ids that name nothing are left out.
func (q *Queue) Preview(ctx context.Context, s Selection) (Preview, error) {
	var p Preview
	if err := s.validate(); err != nil {
		return p, err
	}
	type name struct {
		consumer    event.Consumer
		fingerprint string
	}
	kinds := map[name]*Kind{}
	add := func(e Entry) {
		if p.Total++; len(p.Examples) < 3 {
			p.Examples = append(p.Examples, e)
		}
		n := name{e.Consumer, e.Fingerprint}
		if kinds[n] == nil {
			kinds[n] = &Kind{Consumer: e.Consumer, Fingerprint: e.Fingerprint, Type: event.Type(e.Type), Class: e.Class, Error: normalise(e.Error)}
		}
		kinds[n].Count++
	}
	parts, err := q.parts(ctx, s)
	if err != nil {
		return p, err
	}
	for _, part := range parts {
		store, err := part.open()
		if err != nil {
			return p, err
		}
		for _, id := range part.IDs {
			c, err := store.Get(ctx, id)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return p, err
			}
			if err == nil && c.Letter != nil {
				add(c.Letter.Entry)
			}
		}
		if len(s.IDs) > 0 {
			continue
		}
		err = store.Scan(ctx, part.Filter, false, func(r Record) error {
			add(r.Entry)
			return nil
		})
		if err != nil {
			return p, err
		}
	}
	for _, k := range kinds {
		p.Kinds = append(p.Kinds, *k)
	}
	slices.SortFunc(p.Kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return p, nil
}
