package outboxtest

import (
	"fmt"
	"sync"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

func idOf(e event.Event) string { return "outbox." + string(event.EventKeyOf(e)) }

// replay replays one parked row.
func (r *rig) replayOne(id string) dlq.Result {
	r.Helper()
	result, err := r.outbox.Parked().Replay(r.Context(), dlq.Ref{ID: id}, dlq.ReplayOptions{By: "ada"})
	r.ok(err)
	if result.Status != dlq.Pending {
		r.Errorf("replay: %+v", result)
	}
	return result
}

func (r *rig) takeBack(id string) dlq.Status {
	r.Helper()
	result, err := r.outbox.Parked().TakeBack(r.Context(), dlq.Ref{ID: id}, dlq.TakeBackOptions{})
	r.ok(err)
	return result.Status
}

// wantLetter checks the only letter: how often it was dead-lettered, and how far its
// replay is, "" for none. It is the same in a list, in a scan and by itself.
func (r *rig) wantLetter(id string, count, replay int, state string) {
	r.Helper()
	p := r.outbox.Parked()
	page, err := p.List(r.Context(), dlq.Filter{}, 10, 0)
	r.ok(err)
	c, err := p.Get(r.Context(), id)
	r.ok(err)
	letters := []dlq.Entry{c.Letter.Entry}
	for _, row := range r.parkedRows(dlq.Filter{Reason: event.ReasonExhausted}) {
		letters = append(letters, row.Entry)
	}
	letters = append(letters, page.Entries...)
	if len(letters) != 3 || page.Total != 1 || page.Matching != 1 {
		r.Fatalf("letters are %+v of %d", letters, page.Total)
	}
	for _, l := range letters {
		is := dlq.Replaying{}
		if l.Replay != nil {
			is = *l.Replay
		}
		if l.ID != id || l.Count != count || l.Failures != 2 || l.Class != "too-large" || is.State != state || is.Number != replay || is.By == "ada" != (state != "") {
			r.Errorf("letter %+v, %+v; want count %d, replay %d %q", l, is, count, replay, state)
		}
	}
}

// replayedRow is one that is refused again, taken back, and published in the end.
func replayedRow(r *rig) {
	bad := r.large("ord-1", "bad")
	r.add(bad)
	id, now := idOf(bad), outbox.RelayConfig{MaxAttempts: 2, BaseDelay: time.Millisecond}
	relay := r.relay(now)
	r.eventually(counts{outbox.DeadLetter: 1})
	relay.stop()
	r.add(r.event("ord-2", "open")) // no letter
	r.wantLetter(id, 1, 0, "")

	first := r.replayOne(id)
	r.wantLetter(id, 1, 1, dlq.ReplayWaiting)
	r.wantOutcome(first, dlq.Waiting)
	if got := r.takeBack(id); got != dlq.TakenBack {
		r.Errorf("waiting: %s", got)
	}
	r.wantLetter(id, 1, 0, "")
	r.wantOutcome(first, dlq.TakenBack)

	// A relay that has the row has it alone.
	r.replayOne(id)
	r.exec("UPDATE outbox SET status = 'PROCESSING', owner = 'x', due_at = " + r.soon() + " WHERE key = 'ord-1'")
	r.wantLetter(id, 1, 2, dlq.ReplayRunning)
	if got := r.takeBack(id); got != dlq.InProgress {
		r.Errorf("running: %s", got)
	}
	discarded, err := r.outbox.Parked().Discard(r.Context(), dlq.Ref{ID: id}, dlq.DiscardOptions{Force: true})
	if r.ok(err); discarded.Status != dlq.InProgress {
		r.Errorf("discard of one that a relay has: %+v", discarded)
	}
	r.exec("UPDATE outbox SET status = 'PENDING', owner = NULL WHERE key = 'ord-1'")

	// It is refused once, and waits: the letter is what it was.
	relay = r.relay(outbox.RelayConfig{MaxAttempts: 2, BaseDelay: time.Hour, MaxDelay: time.Hour})
	r.becomes(1, "outbox WHERE status = 'PENDING' AND attempts = 1")
	relay.stop()
	r.wantLetter(id, 1, 2, dlq.ReplayRetrying)

	// It is refused for good: one letter, with all of the story.
	r.exec("UPDATE outbox SET due_at = NULL WHERE key = 'ord-1'")
	relay = r.relay(now)
	r.eventually(counts{outbox.Published: 1, outbox.DeadLetter: 1})
	relay.stop()
	r.wantLetter(id, 2, 0, "")
	r.wantOutcome(first, dlq.FailedAgain)
	if rows := r.parkedRows(dlq.Filter{}); len(rows[0].Attempts) != 4 {
		r.Errorf("attempts %+v", rows[0].Attempts)
	}

	// One that retries can be taken back, too.
	r.replayOne(id)
	relay = r.relay(outbox.RelayConfig{MaxAttempts: 2, BaseDelay: time.Hour, MaxDelay: time.Hour})
	r.becomes(1, "outbox WHERE status = 'PENDING' AND attempts = 1")
	relay.stop()
	if got := r.takeBack(id); got != dlq.TakenBack {
		r.Errorf("retrying: %s", got)
	}
	r.wantOutcome(first, dlq.TakenBack)

	// Mended, it is published, and is no letter any more.
	last := r.replayOne(id)
	r.server.Reload(r, payload(1<<20))
	r.server.Restart(r)
	bustest.Eventually(r, soon, func() bool { return r.bus.Conn().MaxPayload() == 1<<20 })
	r.relay(now)
	r.eventually(counts{outbox.Published: 2})
	r.wantOutcome(last, dlq.Handled)
	if got := r.takeBack(id); got != dlq.NotFound || len(r.parkedRows(dlq.Filter{})) != 0 {
		r.Errorf("published: %s", got)
	}
	r.wantOnce(2)
}

func (r *rig) wantOutcome(result dlq.Result, want dlq.Status) {
	r.Helper()
	if o, err := r.outbox.Parked().Outcome(r.Context(), result); err != nil || o.Status != want {
		r.Errorf("the outcome is %+v, want %s: %v", o, want, err)
	}
}

// takenBackBesideRelay has two relays publish what others take back: no row that was
// taken back is published, and every other one is.
func takenBackBesideRelay(r *rig) {
	const n = 200
	events := make([]event.Event, n)
	for i := range events {
		events[i] = r.event(fmt.Sprint("ord-", i), fmt.Sprint("ord-", i, "-0"))
	}
	r.add(events...)
	for _, e := range events {
		r.park(e, event.Attempt{Number: 1, At: time.Now(), Class: "first", Reason: event.ReasonExhausted})
	}
	for range 2 {
		r.relay(outbox.RelayConfig{Batch: 7})
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for worker := range 4 {
		work.Go(func() {
			for i := worker; i < n; i += 4 {
				r.replayOne(idOf(events[i]))
				if r.takeBack(idOf(events[i])) == dlq.TakenBack {
					mu.Lock()
					taken++
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	r.becomes(0, "outbox WHERE status IN ('PENDING', 'PROCESSING')")
	r.want(map[string]int{"outbox WHERE status = 'DEAD_LETTER'": taken, "outbox WHERE status = 'PUBLISHED'": n - taken})
	r.wantOnce(n - taken)
	r.Logf("%d of %d were taken back", taken, n)
}
