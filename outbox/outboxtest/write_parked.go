package outboxtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// park sets a row to what a relay makes of one that it gives up.
func (w *writer) park(e event.Event, attempts ...event.Attempt) {
	w.Helper()
	story, err := json.Marshal(attempts)
	w.ok(err)
	w.exec(w.db, "UPDATE outbox SET status = 'DEAD_LETTER', attempts = $1, story = $2 WHERE message_id = $3",
		len(attempts), string(story), string(event.EventKeyOf(e)))
}

// list returns the ids of the events that are parked, newest first.
func (w *writer) list(f outbox.ParkedFilter) (ids []string) {
	w.Helper()
	for p, err := range w.outbox.Parked(w.Context(), f) {
		w.ok(err)
		e, err := p.Event()
		w.ok(err)
		ids = append(ids, e.ID())
	}
	return ids
}

func parked(w *writer) {
	const n = 40 // more than are read at once
	ago := func(hours int) time.Time {
		return time.Now().Add(time.Duration(-hours) * time.Hour).Truncate(time.Millisecond)
	}
	var all []string
	for i := range n {
		e := w.seal(fmt.Sprintf("ord/%d", i%4), fmt.Sprint(i), fmt.Append(nil, "data ", i))
		w.add(e)
		reason, class := event.ReasonExhausted, "*errors.errorString"
		if i%2 == 0 {
			reason, class = event.ReasonPermanent, "TooLarge"
		}
		w.park(e, event.Attempt{Number: 1, At: ago(n + 1), Class: "first", Error: "before"},
			event.Attempt{Number: 2, At: ago(n - i), Class: class, Error: fmt.Sprint("It is number ", i), Reason: reason})
		all = append(all, e.ID())
	}
	w.add(w.seal("ord/0", "pending", nil))
	if got := w.list(outbox.ParkedFilter{OldestFirst: true}); !slices.Equal(got, all) {
		w.Errorf("oldest first: %v", got)
	}
	slices.Reverse(all)
	if got := w.list(outbox.ParkedFilter{}); !slices.Equal(got, all) {
		w.Errorf("all: %v", got)
	}
	last := w.row("0")
	for name, tt := range map[string]struct {
		filter outbox.ParkedFilter
		want   int
	}{
		"key":         {outbox.ParkedFilter{Key: "ord/3"}, n / 4},
		"type":        {outbox.ParkedFilter{Type: "order.placed.v1"}, n},
		"other type":  {outbox.ParkedFilter{Type: "order.placed.v2"}, 0},
		"reason":      {outbox.ParkedFilter{Reason: event.ReasonPermanent}, n / 2},
		"class":       {outbox.ParkedFilter{Class: "TooLarge", Key: "ord/1"}, 0},
		"text":        {outbox.ParkedFilter{Text: "IT IS NUMBER 17"}, 1},
		"older":       {outbox.ParkedFilter{Before: ago(10).Add(-time.Minute)}, n - 10},
		"newer":       {outbox.ParkedFilter{After: ago(10).Add(-time.Minute)}, 10},
		"message id":  {outbox.ParkedFilter{MessageID: last.MessageID}, 1},
		"next page":   {outbox.ParkedFilter{Beyond: last.ID + 2}, 2},
		"the last":    {outbox.ParkedFilter{Beyond: last.ID}, 0},
		"from a page": {outbox.ParkedFilter{Beyond: last.ID, OldestFirst: true}, n - 1},
		"no such key": {outbox.ParkedFilter{Key: "' OR 1=1 --"}, 0},
	} {
		if got := w.list(tt.filter); len(got) != tt.want {
			w.Errorf("%s: %d rows, want %d: %v", name, len(got), tt.want, got)
		}
	}
	if string(last.Data) != "data 0" || last.Key != "ord=2F0" || len(last.Attempts) != 2 || last.Reason() != event.ReasonPermanent ||
		!last.ParkedAt().Equal(ago(n)) && last.ParkedAt().Sub(ago(n)).Abs() > time.Minute ||
		time.Since(last.CreatedAt).Abs() > time.Hour || last.Headers["ce-id"][0] != "0" {
		w.Errorf("row %+v", last)
	}
	w.redrive(last, w.row("1").ID)
	w.discard()
}

func (w *writer) row(id string) outbox.Parked {
	w.Helper()
	key := string(event.NewEventKey("/outboxtest", id))
	for p, err := range w.outbox.Parked(w.Context(), outbox.ParkedFilter{MessageID: key}) {
		w.ok(err)
		return p
	}
	w.Fatalf("%s is not parked", id)
	return outbox.Parked{}
}

// redrive has parked rows published, with their stories.
func (w *writer) redrive(one outbox.Parked, other int64) {
	w.Helper()
	before := w.count("outbox WHERE status = 'DEAD_LETTER'")
	for _, tt := range []struct {
		ids  []int64
		want int
	}{{nil, 0}, {[]int64{one.ID, other, one.ID, -1}, 2}, {[]int64{one.ID}, 0}} {
		if n, err := w.outbox.Redrive(w.Context(), tt.ids...); n != tt.want || err != nil {
			w.Errorf("%d redriven, want %d: %v", n, tt.want, err)
		}
	}
	w.want(map[string]int{
		"outbox WHERE status = 'DEAD_LETTER'": before - 2,
		"outbox WHERE status = 'PENDING' AND attempts = 0 AND owner IS NULL AND story LIKE '%before%'": 2,
	})
	w.relay(w.outbox, w.stream())
	w.await("outbox WHERE status = 'PUBLISHED'", 3)
}

func (w *writer) discard() {
	w.Helper()
	p, before := w.row("2"), w.count("outbox")
	if n, err := w.outbox.Discard(w.Context(), p.ID, p.ID-1, -1); n != 1 || err != nil { // the one before is published
		w.Errorf("%d discarded: %v", n, err)
	}
	if n, err := w.outbox.Discard(w.Context(), p.ID); n != 0 || err != nil {
		w.Errorf("%d discarded again: %v", n, err)
	}
	w.want(map[string]int{"outbox": before - 1})
	w.add(w.seal("ord/0", "2", nil)) // its id is free
}

// unreadable lists rows of which others have made what they liked.
func unreadable(w *writer) {
	for i, text := range []string{"", "no JSON", `{"ce-id": 7}`, "[]"} {
		w.exec(w.db, "INSERT INTO outbox (message_id, subject, key, headers, story, status) VALUES ($1, $2, 'k', $3, $3, 'DEAD_LETTER')",
			fmt.Sprint(i), w.names.EventSubject("order.placed.v1", "k"), text)
	}
	n := 0
	for p, err := range w.outbox.Parked(w.Context(), outbox.ParkedFilter{Type: "order.placed.v1"}) {
		w.ok(err)
		n++
		if _, err := p.Event(); err == nil || len(p.Attempts) != 0 || p.Reason() != event.ReasonExhausted || p.ParkedAt().IsZero() {
			w.Errorf("row %+v, error %v", p, err)
		}
	}
	if n != 4 {
		w.Errorf("%d rows, want 4", n)
	}
}

func statistics(w *writer) {
	s, err := w.outbox.Stats(w.Context())
	w.ok(err)
	if s != (outbox.Stats{}) {
		w.Errorf("empty: %+v", s)
	}
	for i := range 8 {
		w.add(w.seal("ord-1", fmt.Sprint(i), nil))
	}
	now, later, past := "clock_timestamp()", "clock_timestamp() + interval '1 hour'", "clock_timestamp() - interval '1 hour'"
	if w.Dialect == outbox.SQLite {
		now, later, past = "unixepoch() * 1000", "(unixepoch() + 3600) * 1000", "(unixepoch() - 3600) * 1000"
	}
	set := func(id int, assignments string) {
		w.exec(w.db, "UPDATE outbox SET "+assignments+" WHERE message_id = $1", string(event.NewEventKey("/outboxtest", fmt.Sprint(id))))
	}
	set(0, "status = 'PUBLISHED', published_at = "+now)
	set(1, "status = 'PROCESSING', owner = 'x', created_at = "+past+", due_at = "+later)
	set(2, "status = 'DEAD_LETTER'")
	set(3, "due_at = "+later)
	set(4, "due_at = "+past)
	s, err = w.outbox.Stats(w.Context())
	w.ok(err)
	if s.Oldest < 59*time.Minute || s.Oldest > 90*time.Minute {
		w.Errorf("oldest %v", s.Oldest)
	}
	s.Oldest = 0
	if want := (outbox.Stats{Pending: 5, Waiting: 1, Processing: 1, Parked: 1}); s != want {
		w.Errorf("%+v, want %+v", s, want)
	}
}
