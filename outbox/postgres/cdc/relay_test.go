package cdc_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/cdc"
	"github.com/farandole/farandole/topology"
)

func TestFeedRelayPublishesCommitsInTheirOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	relay, _ := r.relay(outbox.RelayConfig{Poll: never})
	r.attached()
	r.add("a", "first")
	early, late, undone := begin(t, r.outbox), begin(t, r.outbox), begin(t, r.outbox)
	r.addTo(early, "a", "2nd")
	r.addTo(late, "b", "3rd")
	r.addTo(undone, "a", "undone")
	if err := undone.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
	r.expect("first", "3rd")
	if err := early.Commit(); err != nil {
		t.Fatal(err)
	}
	r.expect("first", "3rd", "2nd")
	r.statuses("PUBLISHED 3")
	if err := relay.Health(); err != nil {
		t.Error(err)
	}
	if claimed := scan(t, r.outbox, `SELECT count(*) FROM `+table(r.outbox)+` WHERE published_at IS NULL OR owner IS NOT NULL OR due_at IS NOT NULL`); claimed != "0" {
		t.Errorf("%s rows are not tidy", claimed)
	}
}

// Rows older than the slot go out, each key in its order, and then those of the feed.
func TestFeedRelayPublishesTheBacklogFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	const backlog, more, keys = 1200, 60, 3
	var events []event.Event
	for n := range backlog {
		events = append(events, r.event(fmt.Sprint(n%keys), fmt.Sprint(n)))
	}
	r.insert("", events...)
	r.relay(outbox.RelayConfig{Poll: never})
	for i := range more {
		if i == more/2 {
			r.attached()
		}
		r.add(fmt.Sprint((backlog+i)%keys), fmt.Sprint(backlog+i))
	}
	r.statuses(fmt.Sprintf("PUBLISHED %d", backlog+more))
	got := r.stored()
	if len(got) != backlog+more {
		t.Errorf("%d messages, want %d", len(got), backlog+more)
	}
	var next [keys]int
	for _, id := range got {
		var n int
		if _, err := fmt.Sscan(id, &n); err != nil {
			t.Fatal(err)
		}
		if key := n % keys; n != next[key]*keys+key {
			t.Fatalf("%d comes after %d", n, (next[key]-1)*keys+key)
		}
		next[n%keys]++
	}
}

// A poison row is parked as by a relay without a feed, and its key flows on.
func TestFeedRelayParksWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	r.relay(outbox.RelayConfig{Poll: 50 * time.Millisecond, MaxAttempts: 3, BaseDelay: 500 * time.Millisecond})
	r.attached()
	bad := r.event("a", "bad")
	r.insert("not a subject", bad)
	r.add("b", "other") // at once, before the attempts are over, on a slow machine too
	for i := range 3 {
		r.add("a", fmt.Sprint("follower ", i))
	}
	r.statuses("DEAD_LETTER 1, PUBLISHED 4")
	r.expect("other", "follower 0", "follower 1", "follower 2")
	must(t, r.outbox.Parked().Scan(t.Context(), dlq.Filter{}, true, func(p dlq.Record) error {
		if p.EventKey != event.EventKeyOf(bad) || len(p.Attempts) != 3 || p.Reason != event.ReasonExhausted {
			t.Errorf("parked is %+v", p)
		}
		execute(t, r.outbox.DB(), `UPDATE `+table(r.outbox)+` SET subject = $1 WHERE id = $2`, r.bus.Names().EventSubject("order.placed.v1", "a"), p.Sequence)
		result, err := r.outbox.Parked().Replay(t.Context(), dlq.Ref{ID: p.ID}, dlq.ReplayOptions{})
		if result.Status != dlq.Pending {
			t.Errorf("replay: %+v", result)
		}
		return err
	}))
	r.expect("other", "follower 0", "follower 1", "follower 2", "bad")
}

// While there is no event stream rows wait and spend no attempt.
func TestFeedRelayWaitsForTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	relay, _ := r.relay(outbox.RelayConfig{Poll: 50 * time.Millisecond, MaxDelay: time.Second, MaxAttempts: 1})
	r.attached()
	must(t, r.bus.JetStream().DeleteStream(t.Context(), r.bus.Names().EventsStream()))
	for i := range 3 {
		r.add("a", fmt.Sprint("a", i))
	}
	bustest.Eventually(t, within, func() bool { return errors.Is(relay.Health(), bus.ErrNoStream) })
	bustest.Provision(t, r.bus, topology.Config{})
	r.statuses("PUBLISHED 3")
	r.expect("a0", "a1", "a2")
	if n := scan(t, r.outbox, `SELECT sum(attempts) FROM `+table(r.outbox)); n != "0" {
		t.Errorf("%s attempts were spent", n)
	}
}

// A row that no stream takes holds back its key, not the feed; while others have
// a stream it spends its attempts and is parked, and nobody is unhealthy.
func TestFeedRelayParksWhatNoStreamStores(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	stream, err := r.bus.JetStream().Stream(t.Context(), r.bus.Names().EventsStream())
	must(t, err)
	cfg := stream.CachedInfo().Config
	cfg.Subjects[0] = r.bus.Names().Root("events.order.>")
	_, err = r.bus.JetStream().UpdateStream(t.Context(), cfg)
	must(t, err)
	relay, _ := r.relay(outbox.RelayConfig{Poll: 50 * time.Millisecond, MaxAttempts: 2, BaseDelay: 50 * time.Millisecond})
	r.attached()
	r.insert("", r.eventOf("oder.placed.v1", "a", "mistyped", []byte("{}")))
	r.add("b", "b0")
	r.expect("b0")
	r.add("a", "a0")
	r.statuses("DEAD_LETTER 1, PUBLISHED 2")
	r.expect("b0", "a0")
	must(t, relay.Health())
}

// A transaction that stays open somewhere on the server keeps the slot from being
// made, and the relay polls; a slot that is there it does not stop.
func TestFeed_idle_transaction(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{})
	r := newRig(t, s.Database(t), bustest.NewBus(t))
	elsewhere := open(t, s.Database(t))
	idle := begin(t, elsewhere)
	row(t, idle, elsewhere, 1)
	r.relay(outbox.RelayConfig{})
	r.add("a", "polled")
	r.expect("polled")
	if made := r.slot("confirmed_flush_lsn IS NOT NULL"); made == "true" {
		t.Error("the slot is made already")
	}
	if err := idle.Commit(); err != nil {
		t.Fatal(err)
	}
	r.attached()
	idle = begin(t, elsewhere)
	row(t, idle, elsewhere, 2)
	r.add("a", "told")
	r.expect("polled", "told")
	if err := idle.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// While NATS is away nothing is written, the slot is behind, and health says why.
func TestFeedRelaySurvivesAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: s.URL(), Names: event.Names{Prefix: bustest.Prefix()}}), topology.Config{})
	r := newRig(t, pgtest.Database(t), b)
	relay, _ := r.relay(outbox.RelayConfig{Poll: never})
	r.attached()
	r.add("a", "0")
	r.expect("0")
	s.Stop(t)
	bustest.Eventually(t, within, func() bool { return errors.Is(relay.Health(), bus.ErrUnavailable) })
	want := []string{"0"}
	const commits, each = 30, 50 // more rows than a batch
	for range commits {
		tx := begin(t, r.outbox)
		for range each {
			id := fmt.Sprint(len(want))
			want = append(want, id)
			r.addTo(tx, "a", id)
		}
		must(t, tx.Commit())
	}
	<-time.After(2 * time.Second) // the position is told each second: that of the rows before, too
	behind := r.slot("confirmed_flush_lsn")
	<-time.After(2 * time.Second)
	if now := r.slot("confirmed_flush_lsn"); now != behind {
		t.Errorf("position moved from %s to %s", behind, now)
	}
	if n := scan(t, r.outbox, `SELECT count(*) FROM `+table(r.outbox)+` WHERE status = 'PENDING' AND due_at IS NULL AND attempts = 0`); n != fmt.Sprint(commits*each) {
		t.Errorf("%s rows are untouched, want %d", n, commits*each)
	}
	s.Restart(t)
	r.statuses(fmt.Sprint("PUBLISHED ", len(want)))
	r.expect(want...)
	bustest.Eventually(t, within, relay.Health)
	bustest.Eventually(t, within, func() bool { return r.slot("confirmed_flush_lsn") != behind })
}

// The server is killed; after its recovery the slot may stand where it was a while ago.
func TestFeedRelaySurvivesTheDeathOfPostgres(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{})
	r := newRig(t, s.Database(t), bustest.NewBus(t))
	relay, _ := r.relay(outbox.RelayConfig{})
	var want []string
	for range 3 {
		r.attached()
		for range 50 {
			want = append(want, fmt.Sprint(len(want)))
			r.add("a", want[len(want)-1])
		}
		r.expect(want...)
		s.Kill(t)
		bustest.Eventually(t, within, func() bool { return relay.Health() != nil })
		s.Restart(t)
		bustest.Eventually(t, within, func() error { return r.outbox.DB().PingContext(t.Context()) })
	}
	r.attached()
	r.add("a", "last")
	r.expect(append(want, "last")...)
	bustest.Eventually(t, within, relay.Health)
}

// A relay that ends lets another one go on where it was.
func TestFeedRelaysTakeOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	_, stop := r.relay(outbox.RelayConfig{Poll: never})
	r.attached()
	second, _ := r.relay(outbox.RelayConfig{Poll: never})
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		r.add("a", fmt.Sprint(i))
		if i == 10 {
			stop()
		}
	}
	r.expect(want...)
	r.statuses("PUBLISHED 20")
	if err := second.Health(); err != nil {
		t.Error(err)
	}
}

// 8 writers, two relays, some rollbacks: each committed row is stored once.
func TestFeed_publishes_every_commit_once(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 250
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	r.relay(outbox.RelayConfig{})
	r.relay(outbox.RelayConfig{})
	r.attached()
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i := range each {
				tx := begin(r, r.outbox)
				err := r.outbox.Add(t.Context(), tx, r.event(fmt.Sprint(w, i%5), fmt.Sprint(w, "-", i)))
				if err != nil {
					t.Error(err)
				}
				end := tx.Commit
				if i%10 == 9 {
					end = tx.Rollback
				}
				if err := end(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	const all = writers * each / 10 * 9
	r.statuses(fmt.Sprint("PUBLISHED ", all))
	got := r.stored()
	if len(got) != all {
		t.Errorf("%d messages are stored, want %d", len(got), all)
	}
	last := map[string]int{} // of a writer and key
	for _, id := range got {
		var w, i int
		if _, err := fmt.Sscanf(id, "%d-%d", &w, &i); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			t.Errorf("%s was rolled back", id)
		}
		key := fmt.Sprint(w, i%5)
		if before, ok := last[key]; ok && before >= i {
			t.Errorf("%s comes after %d", id, before)
		}
		last[key] = i
	}
}

// One transaction with more rows than are read ahead, and more data than a batch has.
func TestFeedRelayPublishesLargeTransactions(t *testing.T) {
	t.Parallel()
	const small, large = 6_000, 30
	r := newRig(t, aloneOnItsServer(t), bustest.NewBus(t))
	r.relay(outbox.RelayConfig{})
	r.attached()
	var events []event.Event
	for n := range small {
		events = append(events, r.event(fmt.Sprint(n), fmt.Sprint(n)))
	}
	r.insert("", events...)
	events = nil
	for n := range large {
		events = append(events, r.eventOf("order.placed.v1", "l", fmt.Sprint("large ", n), fmt.Appendf(nil, "%0500000d", n)))
	}
	r.insert("", events...)
	r.statuses(fmt.Sprint("PUBLISHED ", small+large))
	if n := r.messages(); n != small+large {
		t.Errorf("%d messages, want %d", n, small+large)
	}
}

// Without logical replication, or with its slot dropped again and again, the relay polls.
func TestFeedRelayFallsBackToPolling(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"wal_level": "replica"}})
	r := newRig(t, s.Database(t), bustest.NewBus(t))
	relay, _ := r.relay(outbox.RelayConfig{})
	r.add("a", "0")
	r.add("a", "1")
	r.expect("0", "1")
	bustest.Eventually(t, within, func() bool { return errors.Is(relay.Health(), cdc.ErrSetup) })
}

func TestFeedRelayLosesItsSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	relay, _ := r.relay(outbox.RelayConfig{})
	var want []string
	for i := range 3 {
		r.attached()
		bustest.Eventually(t, within, func() error {
			scan(t, r.outbox, `SELECT pg_terminate_backend(active_pid)::text FROM pg_replication_slots WHERE slot_name = $1 AND active`, table(r.outbox))
			_, err := r.outbox.DB().ExecContext(t.Context(), `SELECT pg_drop_replication_slot($1)`, table(r.outbox))
			return err
		})
		want = append(want, fmt.Sprint(i))
		r.add("a", fmt.Sprint(i))
		r.expect(want...)
	}
	bustest.Eventually(t, within, relay.Health)
}
