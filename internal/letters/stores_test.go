package letters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// place is a store with what fills it.
type place struct {
	dlq.Store
	consumer event.Consumer
	// seal makes an event, park a dead letter of it after these attempts.
	seal func(t *testing.T, d event.Draft) event.Event
	park func(t *testing.T, e event.Event, attempts ...event.Attempt)
	// after is what Replay makes of a letter, again what a second one does.
	after, again dlq.Status
	// handled ends what is being replayed.
	handled func(t *testing.T)
}

func streamPlace(t *testing.T) place {
	t.Helper()
	b := bustest.NewBus(t)
	m, err := marksOf(b)
	must(t, err)
	ledger, err := dedup.NewKV(b, dedup.Config{})
	must(t, err)
	_, err = b.JetStream().CreateConsumer(t.Context(), b.Names().EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", FilterSubject: b.Names().RedriveFilter("payment"),
	})
	must(t, err)
	park := func(t *testing.T, e event.Event, attempts ...event.Attempt) {
		t.Helper()
		msg, err := b.Names().Message(e)
		must(t, err)
		last, key := attempts[len(attempts)-1], event.EventKeyOf(e)
		claim, err := ledger.Claim(t.Context(), dedup.Request{Consumer: "payment", Key: key, Lease: time.Minute})
		must(t, err)
		letter, err := dlq.Letter(b.Names(), msg, dlq.Origin{Stream: b.Names().EventsStream(), Sequence: 7, Time: last.At}, dlq.Story{
			Consumer: "payment", Reason: last.Reason, Key: key, Attempts: attempts, Failures: len(attempts), At: last.At,
		}, 0)
		must(t, err)
		must(t, ledger.Park(t.Context(), claim, &last, letter))
	}
	return place{dlq.NewStream(b, m), "payment", func(t *testing.T, d event.Draft) event.Event {
		t.Helper()
		e, err := b.Names().Seal(d, "/shop")
		must(t, err)
		return e
	}, park, dlq.Replayed, dlq.InProgress, func(t *testing.T) {
		t.Helper()
		dead, err := b.JetStream().Stream(t.Context(), b.Names().DLQStream())
		must(t, err)
		must(t, dlq.NewStream(b, m).Scan(t.Context(), dlq.Filter{}, false, func(r dlq.Record) error {
			if r.Replay == nil {
				return nil
			}
			claim, err := ledger.Claim(t.Context(), dedup.Request{Consumer: "payment", Key: r.EventKey, Replay: r.Replay.Number, Lease: time.Minute})
			must(t, err)
			must(t, ledger.Complete(t.Context(), claim, nil))
			return dead.Purge(t.Context(), jetstream.WithPurgeSubject(b.Names().DeadLetterFilter("payment", "", r.EventKey)))
		}))
	}}
}

func outboxPlace(t *testing.T, target string) place {
	t.Helper()
	db, err := database.Open(target)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	o, err := db.Outbox(outbox.Config{Source: "/shop"})
	must(t, err)
	must(t, o.Migrate(t.Context()))
	park := func(t *testing.T, e event.Event, attempts ...event.Attempt) {
		t.Helper()
		story, err := json.Marshal(attempts)
		must(t, err)
		tx, err := db.DB.BeginTx(t.Context(), nil)
		must(t, err)
		must(t, o.Add(t.Context(), tx, e))
		_, err = tx.ExecContext(t.Context(), "UPDATE outbox SET status = 'DEAD_LETTER', attempts = $1, story = $2 WHERE message_id = $3",
			len(attempts), string(story), string(event.EventKeyOf(e)))
		must(t, err)
		must(t, tx.Commit())
	}
	return place{o.Parked(), dlq.ConsumerOutbox, func(t *testing.T, d event.Draft) event.Event {
		t.Helper()
		e, err := o.Seal(d)
		must(t, err)
		return e
	}, park, dlq.Pending, dlq.InProgress, func(t *testing.T) {
		t.Helper()
		_, err := db.DB.ExecContext(t.Context(), "UPDATE outbox SET status = 'PUBLISHED', due_at = NULL WHERE status = 'PENDING'")
		must(t, err)
	}}
}

// onEach runs a test with each implementation of the port.
func onEach(t *testing.T, test func(*testing.T, place)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) place{
		"stream":   streamPlace,
		"SQLite":   func(t *testing.T) place { t.Helper(); return outboxPlace(t, filepath.Join(t.TempDir(), "parked.db")) },
		"Postgres": func(t *testing.T) place { t.Helper(); return outboxPlace(t, pgtest.Database(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fill parks n events: id-0 and so on, of two keys in turn, every third of them
// without another try.
func (p place) fill(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		e := p.seal(t, event.Draft{
			Type: "order.placed.v1", Key: event.Key(fmt.Sprint("ord/", i%2)), ID: fmt.Sprint("id-", i),
			ContentType: event.ContentTypeJSON, Data: fmt.Appendf(nil, `{"n":%d}`, i),
		})
		last := event.Attempt{Number: 2, At: time.Now(), Class: "Timeout", Error: fmt.Sprintf("gateway %d is late", i), Reason: event.ReasonExhausted}
		if i%3 == 0 {
			last.Class, last.Error, last.Reason = "TooLarge", fmt.Sprintf("%d bytes", i), event.ReasonPermanent
		}
		p.park(t, e, event.Attempt{Number: 1, At: time.Now(), Class: "First", Error: "first"}, last)
		ids = append(ids, string(p.consumer)+"."+string(event.EventKeyOf(e)))
	}
	return ids
}

func (p place) scan(t *testing.T, f dlq.Filter) (all []dlq.Record) {
	t.Helper()
	must(t, p.Scan(t.Context(), f, true, func(r dlq.Record) error {
		all = append(all, r)
		return nil
	}))
	return all
}

func (p place) total(t *testing.T) int {
	t.Helper()
	page, err := p.List(t.Context(), dlq.Filter{}, 1, 0)
	must(t, err)
	return page.Total
}

func TestStores_list_newest_first_in_pages(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		ids := p.fill(t, 40)
		slices.Reverse(ids)
		for name, f := range map[string]dlq.Filter{"all": {}, "by consumer": {Consumer: p.consumer}, "by class": {Class: "Timeout"}} {
			var want, got []string
			for i, id := range ids {
				if f.Class == "" || (39-i)%3 != 0 {
					want = append(want, id)
				}
			}
			for cursor, pages := uint64(0), 0; ; pages++ {
				page, err := p.List(t.Context(), f, 7, cursor)
				must(t, err)
				if page.Matching != len(want) || page.Total != 40 || len(page.Entries) > 7 || pages > 6 {
					t.Fatalf("%s: page %d: %d entries, %d matching of %d", name, pages, len(page.Entries), page.Matching, page.Total)
				}
				for _, e := range page.Entries {
					got = append(got, e.ID)
				}
				if cursor = page.Next; cursor == 0 {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d entries: %v", name, len(got), got)
			}
		}
		page, err := p.List(t.Context(), dlq.Filter{Consumer: "nobody"}, 7, 0)
		must(t, err)
		if page.Matching != 0 || page.Total != 40 || len(page.Entries) != 0 || page.Next != 0 {
			t.Errorf("of nobody: %+v", page)
		}
	})
}

func TestStores_scan_what_a_filter_matches_oldest_first(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		begin := time.Now().Add(-time.Minute)
		ids := p.fill(t, 12)
		all := p.scan(t, dlq.Filter{})
		for i, r := range all {
			if r.ID != ids[i] {
				t.Errorf("record %d is %s, want %s", i, r.ID, ids[i])
			}
		}
		if len(all) != 12 {
			t.Fatalf("%d records", len(all))
		}
		for name, tt := range map[string]struct {
			f    dlq.Filter
			want int
		}{
			"consumer":    {dlq.Filter{Consumer: p.consumer}, 12},
			"nobody":      {dlq.Filter{Consumer: "nobody"}, 0},
			"reason":      {dlq.Filter{Reason: event.ReasonPermanent}, 4},
			"class":       {dlq.Filter{Class: "Timeout"}, 8},
			"type":        {dlq.Filter{Type: "order.placed.v1"}, 12},
			"other type":  {dlq.Filter{Type: "order.placed.v2"}, 0},
			"key":         {dlq.Filter{Key: "ord/1"}, 6},
			"fingerprint": {dlq.Filter{Fingerprint: all[1].Fingerprint}, 8},
			"text":        {dlq.Filter{Text: "GATEWAY 7 "}, 1},
			"since":       {dlq.Filter{After: begin}, 12},
			"before":      {dlq.Filter{Before: begin}, 0},
			"two fields":  {dlq.Filter{Key: "ord/1", Reason: event.ReasonPermanent}, 2},
		} {
			if got := p.scan(t, tt.f); len(got) != tt.want {
				t.Errorf("%s: %d records, want %d", name, len(got), tt.want)
			}
		}
		failed, visits := errors.New("visit"), 0
		err := p.Scan(t.Context(), dlq.Filter{}, false, func(dlq.Record) error { visits++; return failed })
		if err != failed || visits != 1 { //nolint:errorlint // as it is
			t.Errorf("after an error of visit: %d visits, %v", visits, err)
		}
	})
}

func TestStores_know_the_whole_story(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		id := p.fill(t, 2)[1]
		c, err := p.Get(t.Context(), id)
		must(t, err)
		if c.ID != id || c.Letter == nil || c.Verdict == "" {
			t.Fatalf("case %+v", c)
		}
		for name, r := range map[string]dlq.Record{"get": *c.Letter, "scan": p.scan(t, dlq.Filter{})[1]} {
			if r.ID != id || r.Sequence == 0 || time.Since(r.Stored).Abs() > time.Hour || r.Consumer != p.consumer ||
				r.Reason != event.ReasonExhausted || r.EventID != "id-1" || r.Source != "/shop" || r.Type != "order.placed.v1" || r.Key != "ord/1" {
				t.Errorf("%s: whose it is: %+v", name, r.Entry)
			}
			if r.Class != "Timeout" || r.Error != "gateway 1 is late" || r.FirstClass != "First" || r.FirstError != "first" ||
				len(r.Fingerprint) != 12 || r.Count != 1 || r.Failures != 2 || r.FirstFailure.IsZero() || r.LastFailure.IsZero() || len(r.Attempts) != 2 {
				t.Errorf("%s: why it failed: %+v", name, r)
			}
			if string(r.Data) != `{"n":1}` || r.Size != 7 || r.Headers["ce-id"][0] != "id-1" || r.Origin.Subject == "" {
				t.Errorf("%s: the message: %+v", name, r)
			}
		}
		if _, err := p.Get(t.Context(), string(p.consumer)+".unknown"); !errors.Is(err, dlq.ErrNotFound) {
			t.Errorf("unknown: %v", err)
		}
	})
}

func TestStores_replay_and_discard_each_letter_once(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		ids := p.fill(t, 4)
		all := p.scan(t, dlq.Filter{})
		for _, tt := range []struct {
			what string
			ref  dlq.Ref
			do   func(dlq.Ref) (dlq.Result, error)
			want dlq.Status
			left int
		}{
			{"replay dry", dlq.Ref{ID: ids[0]}, p.replay(t, true), dlq.WouldReplay, 4},
			{"replay", dlq.Ref{ID: ids[0]}, p.replay(t, false), p.after, 3},
			{"replay again", dlq.Ref{ID: ids[0]}, p.replay(t, false), p.again, 3},
			{"replay again what was scanned before", dlq.Ref{ID: ids[0], Sequence: all[0].Sequence}, p.replay(t, true), p.again, 3},
			{"take back what is not replayed", dlq.Ref{ID: ids[1]}, p.takeBack(t), dlq.NotReplayed, 3},
			{"replay what was scanned", dlq.Ref{ID: ids[1], Sequence: all[1].Sequence}, p.replay(t, false), p.after, 2},
			{"discard dry", dlq.Ref{ID: ids[2]}, p.discard(t, true), dlq.WouldDiscard, 2},
			{"discard", dlq.Ref{ID: ids[2]}, p.discard(t, false), dlq.Discarded, 1},
			{"discard again", dlq.Ref{ID: ids[2], Sequence: all[2].Sequence}, p.discard(t, false), dlq.NotFound, 1},
			{"discard what was scanned", dlq.Ref{ID: ids[3], Sequence: all[3].Sequence}, p.discard(t, false), dlq.Discarded, 0},
		} {
			r, err := tt.do(tt.ref)
			must(t, err)
			if r.ID != tt.ref.ID || r.Status != tt.want || errors.Is(r.Err, dlq.ErrNotFound) != (tt.want == dlq.NotFound) {
				t.Errorf("%s: %+v, want %s", tt.what, r, tt.want)
			}
			if left := p.parked(t); left != tt.left {
				t.Errorf("%s: %d letters are left, want %d", tt.what, left, tt.left)
			}
		}
		p.handled(t)
		if left := p.total(t); left != 0 {
			t.Errorf("%d letters are left after all", left)
		}
	})
}

func TestStores_take_back_what_they_replay(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		id := p.fill(t, 1)[0]
		for i, tt := range []struct {
			do   func(dlq.Ref) (dlq.Result, error)
			want dlq.Status
		}{
			{p.takeBack(t), dlq.NotReplayed},
			{p.replay(t, false), p.after},
			{p.discard(t, false), dlq.InProgress},
			{p.takeBack(t), dlq.TakenBack},
			{p.takeBack(t), dlq.NotReplayed},
			{p.replay(t, false), p.after},
		} {
			r, err := tt.do(dlq.Ref{ID: id})
			must(t, err)
			if r.Status != tt.want {
				t.Fatalf("step %d: %+v, want %s", i, r, tt.want)
			}
		}
		c, err := p.Get(t.Context(), id)
		must(t, err)
		if r := c.Letter.Replay; r == nil || r.Number != 2 || r.State != dlq.ReplayWaiting || r.By != "ada" || time.Since(r.At).Abs() > time.Hour ||
			c.Letter.Count != 1 || len(c.Letter.Attempts) != 2 || !strings.HasPrefix(c.Verdict, "replayed, waiting for ") {
			t.Errorf("replay %+v of %+v", r, c)
		}
		if r := c.Letter.Replay; p.consumer != dlq.ConsumerOutbox && (r.Workers == nil || *r.Workers != 0) {
			t.Errorf("workers of %+v", r)
		}
	})
}

func TestStores_take_a_short_id_of_one_letter(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		ids := p.fill(t, 40)
		short := func(id string, n int) string { return id[:len(p.consumer)+1+n] }
		done := func(r dlq.Result, err error) dlq.Result { must(t, err); return r }
		for _, id := range ids {
			c, err := p.Get(t.Context(), short(id, 8))
			must(t, err)
			if c.ID != id || c.Letter.ID != id {
				t.Fatalf("%s is %s", short(id, 8), c.ID)
			}
		}
		if r := done(p.replay(t, false)(dlq.Ref{ID: short(ids[3], 8)})); r.ID != ids[3] || r.Status != p.after {
			t.Errorf("replay: %+v", r)
		}
		if r := done(p.takeBack(t)(dlq.Ref{ID: short(ids[3], 8)})); r.ID != ids[3] || r.Status != dlq.TakenBack {
			t.Errorf("take back: %+v", r)
		}
		like := ids[0] // one whose first character others have, too: there are 32 for 40
		for i, id := range ids {
			for _, other := range ids[:i] {
				if short(id, 1) == short(other, 1) {
					like = id
				}
			}
		}
		_, err := p.Get(t.Context(), short(like, 1))
		if !errors.Is(err, dlq.ErrAmbiguous) || !strings.Contains(err.Error(), like) {
			t.Errorf("ambiguous: %v", err)
		}
		if r := done(p.discard(t, false)(dlq.Ref{ID: short(like, 1)})); r.Status != dlq.Failed || !errors.Is(r.Err, dlq.ErrAmbiguous) || p.total(t) != 40 {
			t.Errorf("discard of an ambiguous one: %+v", r)
		}
		if r := done(p.discard(t, false)(dlq.Ref{ID: short(ids[3], 8)})); r.ID != ids[3] || r.Status != dlq.Discarded || p.total(t) != 39 {
			t.Errorf("discard: %+v", r)
		}
	})
}

// parked counts the letters that are not being replayed.
func (p place) parked(t *testing.T) (n int) {
	t.Helper()
	for _, r := range p.scan(t, dlq.Filter{}) {
		if r.Replay == nil {
			n++
		}
	}
	return n
}

func (p place) takeBack(t *testing.T) func(dlq.Ref) (dlq.Result, error) {
	t.Helper()
	return func(r dlq.Ref) (dlq.Result, error) { return p.TakeBack(t.Context(), r, dlq.TakeBackOptions{}) }
}

func (p place) replay(t *testing.T, dry bool) func(dlq.Ref) (dlq.Result, error) {
	t.Helper()
	return func(r dlq.Ref) (dlq.Result, error) {
		return p.Replay(t.Context(), r, dlq.ReplayOptions{DryRun: dry, By: "ada"})
	}
}

func (p place) discard(t *testing.T, dry bool) func(dlq.Ref) (dlq.Result, error) {
	t.Helper()
	return func(r dlq.Ref) (dlq.Result, error) { return p.Discard(t.Context(), r, dlq.DiscardOptions{DryRun: dry}) }
}

func TestStores_change_nothing_when_the_context_has_ended(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, p place) {
		t.Helper()
		id := p.fill(t, 1)[0]
		ctx, end := context.WithCancel(t.Context())
		end()
		// Whether a further letter would meet the error is the store's to say.
		if r, err := p.Replay(ctx, dlq.Ref{ID: id}, dlq.ReplayOptions{}); !errors.Is(r.Err, context.Canceled) || r.Status != dlq.Failed {
			t.Errorf("replay: %+v, %v", r, err)
		}
		if r, err := p.Discard(ctx, dlq.Ref{ID: id}, dlq.DiscardOptions{}); !errors.Is(r.Err, context.Canceled) || r.Status != dlq.Failed {
			t.Errorf("discard: %+v, %v", r, err)
		}
		if p.total(t) != 1 {
			t.Error("the letter is gone")
		}
	})
}
