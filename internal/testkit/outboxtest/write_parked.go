package outboxtest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// park sets a row to what a relay makes of one that it gives up.
func (r *rig) park(e event.Event, attempts ...event.Attempt) {
	r.Helper()
	story, err := json.Marshal(attempts)
	r.ok(err)
	r.exec("UPDATE outbox SET status = 'DEAD_LETTER', attempts = $1, story = $2 WHERE message_id = $3",
		len(attempts), string(story), string(event.EventKeyOf(e)))
}

// parkedRows are the parked rows that match f, oldest first.
func (r *rig) parkedRows(f dlq.Filter) (rows []dlq.Record) {
	r.Helper()
	r.ok(r.outbox.Parked().Scan(r.Context(), f, true, func(row dlq.Record) error {
		rows = append(rows, row)
		return nil
	}))
	return rows
}

func parked(r *rig) {
	const n = 40 // more than are read at once
	ago := func(hours int) time.Time {
		return time.Now().Add(time.Duration(-hours) * time.Hour).Truncate(time.Millisecond)
	}
	var all []string
	for i := range n {
		e := r.seal(fmt.Sprintf("ord/%d", i%4), fmt.Sprint(i), fmt.Append(nil, "data ", i))
		r.add(e)
		reason, class := event.ReasonExhausted, "*errors.errorString"
		if i%2 == 0 {
			reason, class = event.ReasonPermanent, "TooLarge"
		}
		r.park(e, event.Attempt{Number: 1, At: ago(n + 1), Class: "first", Error: "before"},
			event.Attempt{Number: 2, At: ago(n - i), Class: class, Error: fmt.Sprint("It is number ", i), Reason: reason})
		all = append(all, e.ID())
	}
	r.add(r.seal("ord/0", "pending", nil))
	rows := r.parkedRows(dlq.Filter{})
	for i, row := range rows {
		if row.EventID != all[i] {
			r.Errorf("row %d is %s, want %s", i, row.EventID, all[i])
		}
	}
	if len(rows) != n {
		r.Fatalf("%d rows", len(rows))
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
		if got := r.parkedRows(tt.filter); len(got) != tt.want {
			r.Errorf("%s: %d rows, want %d", name, len(got), tt.want)
		}
	}
	if row := rows[0]; string(row.Data) != "data 0" || row.Key != "ord/0" || len(row.Attempts) != 2 || row.Reason != event.ReasonPermanent ||
		row.Stored.Sub(ago(n)).Abs() > time.Minute || time.Since(row.Origin.Time).Abs() > time.Hour || row.Headers["ce-id"][0] != "0" {
		r.Errorf("row %+v", row)
	}
	r.replay(rows[0].ID, rows[1].ID)
	r.discard(rows[2].ID)
}

// replay has parked rows published, with their stories.
func (r *rig) replay(ids ...string) {
	r.Helper()
	before := r.count("outbox WHERE status = 'DEAD_LETTER'")
	for _, id := range ids {
		for _, want := range []dlq.Status{dlq.Pending, dlq.InProgress} {
			if result, err := r.outbox.Parked().Replay(r.Context(), dlq.Ref{ID: id}, dlq.ReplayOptions{}); result.Status != want || err != nil {
				r.Errorf("%s is %s, want %s: %v", id, result.Status, want, err)
			}
		}
	}
	r.want(map[string]int{
		"outbox WHERE status = 'DEAD_LETTER'": before - 2,
		"outbox WHERE status = 'PENDING' AND attempts = 0 AND owner IS NULL AND story LIKE '%before%'": 2,
	})
	r.relay(outbox.RelayConfig{})
	r.becomes(3, "outbox WHERE status = 'PUBLISHED'")
}

func (r *rig) discard(id string) {
	r.Helper()
	before := r.count("outbox")
	published := "outbox." + string(event.NewEventKey("/outboxtest", "1"))
	for _, tt := range []struct {
		id   string
		want dlq.Status
	}{{id, dlq.Discarded}, {id, dlq.NotFound}, {published, dlq.NotFound}} {
		if result, err := r.outbox.Parked().Discard(r.Context(), dlq.Ref{ID: tt.id}, dlq.DiscardOptions{}); result.Status != tt.want || err != nil {
			r.Errorf("%s is %s, want %s: %v", tt.id, result.Status, tt.want, err)
		}
	}
	r.want(map[string]int{"outbox": before - 1})
	r.add(r.seal("ord/0", "2", nil)) // its id is free
}

// unreadable lists rows of which others have made what they liked.
func unreadable(r *rig) {
	for i, text := range []string{"", "no JSON", `{"ce-id": 7}`, "[]"} {
		r.exec("INSERT INTO outbox (message_id, subject, key, headers, story, status) VALUES ($1, $2, 'k', $3, $3, 'DEAD_LETTER')",
			fmt.Sprint(i), r.bus.Names().EventSubject("order.placed.v1", "k"), text)
	}
	rows := r.parkedRows(dlq.Filter{Type: "order.placed.v1"})
	for _, row := range rows {
		if row.EventID != "" || len(row.Attempts) != 0 || row.Reason != event.ReasonExhausted || row.Stored.IsZero() || row.Fingerprint == "" {
			r.Errorf("row %+v", row)
		}
	}
	if len(rows) != 4 {
		r.Errorf("%d rows, want 4", len(rows))
	}
}

func statistics(r *rig) {
	s, err := r.outbox.Stats(r.Context())
	r.ok(err)
	if s != (outbox.Stats{}) {
		r.Errorf("empty: %+v", s)
	}
	for i := range 8 {
		r.add(r.seal("ord-1", fmt.Sprint(i), nil))
	}
	now, later, past := "clock_timestamp()", "clock_timestamp() + interval '1 hour'", "clock_timestamp() - interval '1 hour'"
	if r.Dialect == outbox.SQLite {
		now, later, past = "unixepoch() * 1000", "(unixepoch() + 3600) * 1000", "(unixepoch() - 3600) * 1000"
	}
	set := func(id int, assignments string) {
		r.exec("UPDATE outbox SET "+assignments+" WHERE message_id = $1", string(event.NewEventKey("/outboxtest", fmt.Sprint(id))))
	}
	set(0, "status = 'PUBLISHED', published_at = "+now)
	set(1, "status = 'PROCESSING', owner = 'x', created_at = "+past+", due_at = "+later)
	set(2, "status = 'DEAD_LETTER'")
	set(3, "due_at = "+later)
	set(4, "due_at = "+past)
	s, err = r.outbox.Stats(r.Context())
	r.ok(err)
	if s.Oldest < 59*time.Minute || s.Oldest > 90*time.Minute {
		r.Errorf("oldest %v", s.Oldest)
	}
	s.Oldest = 0
	if want := (outbox.Stats{Pending: 5, Waiting: 1, Processing: 1, Parked: 1}); s != want {
		r.Errorf("%+v, want %+v", s, want)
	}
}
