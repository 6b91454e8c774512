package outboxtest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/dlq"
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

// parkedRows are the parked rows that match f, oldest first.
func parkedRows(tb testing.TB, o *outbox.Outbox, f dlq.Filter) (rows []dlq.Record) {
	tb.Helper()
	err := o.Parked().Scan(tb.Context(), f, true, func(r dlq.Record) error {
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return rows
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
	rows := parkedRows(w, w.outbox, dlq.Filter{})
	for i, r := range rows {
		if r.EventID != all[i] {
			w.Errorf("row %d is %s, want %s", i, r.EventID, all[i])
		}
	}
	if len(rows) != n {
		w.Fatalf("%d rows", len(rows))
	}
	for name, tt := range map[string]struct {
		filter dlq.Filter
		want   int
	}{
		"key":         {dlq.Filter{Key: "ord/3"}, n / 4},
		"key, class":  {dlq.Filter{Class: "TooLarge", Key: "ord/1"}, 0},
		"text":        {dlq.Filter{Text: "IT IS NUMBER 17"}, 1},
		"older":       {dlq.Filter{Before: ago(10).Add(-time.Minute)}, n - 10},
		"newer":       {dlq.Filter{After: ago(10).Add(-time.Minute)}, 10},
		"no such key": {dlq.Filter{Key: "' OR 1=1 --"}, 0},
	} {
		if got := parkedRows(w, w.outbox, tt.filter); len(got) != tt.want {
			w.Errorf("%s: %d rows, want %d", name, len(got), tt.want)
		}
	}
	if r := rows[0]; string(r.Data) != "data 0" || r.Key != "ord/0" || len(r.Attempts) != 2 || r.Reason != event.ReasonPermanent ||
		r.Stored.Sub(ago(n)).Abs() > time.Minute || time.Since(r.Origin.Time).Abs() > time.Hour || r.Headers["ce-id"][0] != "0" {
		w.Errorf("row %+v", r)
	}
	w.replay(rows[0].ID, rows[1].ID)
	w.discard(rows[2].ID)
}

// replay has parked rows published, with their stories.
func (w *writer) replay(ids ...string) {
	w.Helper()
	before := w.count("outbox WHERE status = 'DEAD_LETTER'")
	for _, id := range ids {
		for _, want := range []dlq.Status{dlq.Pending, dlq.NotFound} {
			if r, err := w.outbox.Parked().Replay(w.Context(), dlq.Ref{ID: id}, dlq.ReplayOptions{}); r.Status != want || err != nil {
				w.Errorf("%s is %s, want %s: %v", id, r.Status, want, err)
			}
		}
	}
	w.want(map[string]int{
		"outbox WHERE status = 'DEAD_LETTER'": before - 2,
		"outbox WHERE status = 'PENDING' AND attempts = 0 AND owner IS NULL AND story LIKE '%before%'": 2,
	})
	w.relay(w.outbox, w.stream())
	w.await("outbox WHERE status = 'PUBLISHED'", 3)
}

func (w *writer) discard(id string) {
	w.Helper()
	before := w.count("outbox")
	published := "outbox." + string(event.NewEventKey("/outboxtest", "1"))
	for _, tt := range []struct {
		id   string
		want dlq.Status
	}{{id, dlq.Discarded}, {id, dlq.NotFound}, {published, dlq.NotFound}} {
		if r, err := w.outbox.Parked().Discard(w.Context(), dlq.Ref{ID: tt.id}, dlq.DiscardOptions{}); r.Status != tt.want || err != nil {
			w.Errorf("%s is %s, want %s: %v", tt.id, r.Status, tt.want, err)
		}
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
	rows := parkedRows(w, w.outbox, dlq.Filter{Type: "order.placed.v1"})
	for _, r := range rows {
		if r.EventID != "" || len(r.Attempts) != 0 || r.Reason != event.ReasonExhausted || r.Stored.IsZero() || r.Fingerprint == "" {
			w.Errorf("row %+v", r)
		}
	}
	if len(rows) != 4 {
		w.Errorf("%d rows, want 4", len(rows))
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
