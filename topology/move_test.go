package topology_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// A system of the time when timers waited in the event stream, which therefore
// any publisher can erase. The server lets nobody switch that off; what
// docs/timers.md tells brings all over, and each timer fires once.
func TestTimersOfAnOldEventStreamAreMoved(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	n := b.Names()
	addStream(t, b, jetstream.StreamConfig{
		Name: n.EventsStream(), Subjects: []string{n.Root("events.>"), n.Root("redrive.>"), n.Root("timer.>"), n.Root("ledger.>"), n.Root("state.>")},
		AllowAtomicPublish: true, AllowMsgTTL: true, AllowMsgSchedules: true, AllowRollup: true, AllowDirect: true, Duplicates: 2 * time.Minute,
	})
	if _, err := b.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{Durable: "payment"}); err != nil {
		t.Fatal(err)
	}
	set := func(target func(string) string, key string, after time.Duration) {
		m := nats.NewMsg(n.TimerSubject("payment", "deadline", event.Key(key)))
		m.Header.Set(jetstream.ScheduleHeader, event.ScheduleAt(time.Now().Add(after)))
		m.Header.Set(jetstream.ScheduleTargetHeader, target(n.EventSubject("order.deadline.v1", event.Key(key))))
		m.Data = []byte(key)
		if err := publishTo(t, b, m); err != nil {
			t.Fatal(err)
		}
	}
	direct := func(subject string) string { return subject }
	const soon = 3 * time.Second // enough for the backup on a slow machine
	due := time.Now().Add(soon)
	for i := range 3 {
		set(direct, fmt.Sprint("soon-", i), soon)
	}
	set(direct, "later", time.Hour)
	if err := publishTo(t, b, nats.NewMsg(n.EventSubject("order.placed.v1", "k"))); err != nil {
		t.Fatal(err)
	}
	mention(t, refused(t, b, topology.New(b.Names(), topology.Config{})), "allow_msg_schedules: have true, want false (refused)", "docs/timers.md")

	backup := backUp(t, b, n.EventsStream())
	if err := b.JetStream().DeleteStream(t.Context(), n.EventsStream()); err != nil {
		t.Fatal(err)
	}
	backup.config["allow_msg_schedules"], backup.config["allow_rollup_hdrs"] = false, false
	backup.config["subjects"] = slices.DeleteFunc(backup.config["subjects"].([]any), func(s any) bool { return s == n.Root("timer.>") })
	backup.restore(t, b, n.EventsStream())
	<-time.After(time.Until(due)) // they are due while nobody looks

	p := plan(t, b, topology.New(b.Names(), topology.Config{}))
	if c := change(t, p, n.EventsStream(), "timers"); !c.Safe || c.Have != "4 in "+n.EventsStream() || c.Want != "in "+n.TimersStream() {
		t.Errorf("%s", c)
	}
	bustest.Provision(t, b, topology.Config{})
	count := func(name, filter string) map[string]uint64 {
		s, err := b.JetStream().Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(n.Root(filter)))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Subjects
	}
	bustest.Eventually(t, time.Minute, func() bool { return len(count(n.EventsStream(), "events.order.deadline.>")) == 3 })
	for subject, times := range count(n.EventsStream(), "events.>") {
		if times != 1 {
			t.Errorf("%s is there %d times", subject, times)
		}
	}
	if left, moved := count(n.EventsStream(), "timer.>"), count(n.TimersStream(), "timer.>"); len(left) != 0 || len(moved) != 1 {
		t.Errorf("timers left: %v; moved: %v", left, moved)
	}
	if len(count(n.EventsStream(), "events.order.placed.>")) != 1 {
		t.Error("the event is gone")
	}
	if _, err := b.JetStream().Consumer(t.Context(), n.EventsStream(), "payment"); err != nil {
		t.Errorf("the durable is gone: %v", err)
	}
	if p := plan(t, b, topology.New(b.Names(), topology.Config{})); p.Changed() || p.Err() != nil {
		t.Errorf("plan afterwards:\n%s", p)
	}
}

// The event stream refuses what would erase it.
func TestEventStreamRefusesRollups(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	n := b.Names()
	subjects := []string{
		n.EventSubject("order.placed.v1", "k"), n.RedriveSubject("payment", n.EventSubject("order.placed.v1", "k")),
		n.LedgerSubject("payment", "k"), n.StateSubject("inventory", "k"),
	}
	for _, subject := range subjects {
		if err := publishTo(t, b, nats.NewMsg(subject)); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range subjects {
		for _, scope := range []string{"all", "sub"} {
			m := nats.NewMsg(subject)
			m.Header.Set(jetstream.MsgRollup, scope)
			if err := publishTo(t, b, m); err == nil {
				t.Errorf("a roll-up of %q on %s was taken", scope, subject)
			}
		}
		m := nats.NewMsg(subject)
		m.Header.Set(jetstream.ScheduleHeader, event.ScheduleAt(time.Now()))
		m.Header.Set(jetstream.ScheduleTargetHeader, n.EventSubject("order.placed.v1", "other"))
		if err := publishTo(t, b, m); err == nil {
			t.Errorf("a schedule on %s was taken", subject)
		}
	}
	if got := messages(t, b); got != uint64(len(subjects)) {
		t.Errorf("%d messages left, want %d", got, len(subjects))
	}
}

// snapshot is what `nats stream backup` keeps of a stream.
type snapshot struct {
	config map[string]any
	state  map[string]any
	chunks [][]byte
}

func backUp(t *testing.T, b *bus.Bus, stream string) *snapshot {
	t.Helper()
	inbox := b.Conn().NewInbox()
	sub, err := b.Conn().SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	answer := api(t, b, "STREAM.SNAPSHOT."+stream, map[string]any{"deliver_subject": inbox, "chunk_size": 64 << 10})
	s := &snapshot{config: answer["config"].(map[string]any), state: answer["state"].(map[string]any)}
	for {
		m, err := sub.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			return s
		}
		s.chunks = append(s.chunks, m.Data)
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *snapshot) restore(t *testing.T, b *bus.Bus, stream string) {
	t.Helper()
	answer := api(t, b, "STREAM.RESTORE."+stream, map[string]any{"config": s.config, "state": s.state})
	for _, chunk := range append(s.chunks, nil) {
		m, err := b.Conn().RequestWithContext(t.Context(), answer["deliver_subject"].(string), chunk)
		if err != nil {
			t.Fatal(err)
		}
		unmistaken(t, m.Data)
	}
}

// api asks the server.
func api(t *testing.T, b *bus.Bus, subject string, request map[string]any) map[string]any {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	m, err := b.Conn().RequestWithContext(t.Context(), b.APIPrefix()+subject, body)
	if err != nil {
		t.Fatal(err)
	}
	return unmistaken(t, m.Data)
}

func unmistaken(t *testing.T, answer []byte) map[string]any {
	t.Helper()
	var said map[string]any
	if len(answer) > 0 && json.Unmarshal(answer, &said) != nil || said["error"] != nil {
		t.Fatalf("the server says %s", answer)
	}
	return said
}
