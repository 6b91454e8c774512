package main

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// durable makes the durable payment with two types, of one of which two events are pending.
func durable(t *testing.T, s system) {
	t.Helper()
	n := s.Names()
	_, err := s.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", AckPolicy: jetstream.AckExplicitPolicy,
		FilterSubjects: []string{n.RedriveFilter("payment"), n.TypeFilter("order.placed.v1"), n.TypeFilter("order.cancelled.v1")},
	})
	must(t, err)
	for _, key := range []event.Key{"a", "b"} {
		_, err := s.Publish(t.Context(), placedEvent(t, s, key, "{}"))
		must(t, err)
	}
}

func filters(t *testing.T, s system) []string {
	t.Helper()
	c, err := s.JetStream().Consumer(t.Context(), s.Names().EventsStream(), "payment")
	must(t, err)
	return c.CachedInfo().Config.FilterSubjects
}

func TestConsumerDropAsksAndSaysHowMuch(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	got := s.run(t, "", "consumer", "drop", "payment", "--type", "order.placed.v1")
	if got.code != exitUsage || !strings.Contains(got.err, "drop 2 pending events on "+s.Names().TypeFilter("order.placed.v1")) || len(filters(t, s)) != 3 {
		t.Errorf("without --yes: %+v, filters %v", got, filters(t, s))
	}
	got = s.run(t, "", "consumer", "drop", "payment", "--type", "order.placed.v1", "--yes", "--json")
	var doc struct {
		Consumer string
		Dropped  []struct {
			Subject string
			Pending int
		}
	}
	must(t, json.Unmarshal([]byte(got.out), &doc))
	if got.code != exitDone || doc.Consumer != "payment" || len(doc.Dropped) != 1 || doc.Dropped[0].Pending != 2 {
		t.Errorf("with --yes: %+v", got)
	}
	if left := filters(t, s); len(left) != 2 || slices.Contains(left, s.Names().TypeFilter("order.placed.v1")) {
		t.Errorf("filters are %v, want the type gone and the others left", left)
	}
}

func TestConsumerDropsAPattern(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	n := s.Names()
	_, err := s.JetStream().CreateConsumer(t.Context(), n.EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", AckPolicy: jetstream.AckExplicitPolicy,
		FilterSubjects: []string{n.RedriveFilter("payment"), n.Root("events.order.>"), n.TypeFilter("payment.captured.v1")},
	})
	must(t, err)
	if got := s.run(t, "", "consumer", "drop", "payment", "--type", "order.*", "--yes"); got.code != exitDone {
		t.Errorf("%+v", got)
	}
	if left := filters(t, s); len(left) != 2 || slices.Contains(left, n.Root("events.order.>")) {
		t.Errorf("filters are %v, want the pattern gone and the others left", left)
	}
}

func TestConsumerDropRefuses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"payment"}, exitUsage, "want --type"},
		{[]string{"payment", "--type", "order placed"}, exitUsage, "order placed"},
		{[]string{"payment", "--type", "order.confirmed.v1"}, exitFailed, "does not have"},
		{[]string{"shipping", "--type", "order.placed.v1"}, exitFailed, "no durable shipping"},
	} {
		got := s.run(t, "", append([]string{"consumer", "drop", "--yes"}, tt.args...)...)
		if got.code != tt.code || !strings.Contains(got.err, tt.text) {
			t.Errorf("drop %v: %+v, want exit code %d and %q", tt.args, got, tt.code, tt.text)
		}
	}
	if len(filters(t, s)) != 3 {
		t.Errorf("filters are %v, want all left", filters(t, s))
	}
}

func TestConsumerShow(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	got := s.run(t, "", "consumer", "show", "payment", "--json")
	var status consumer.Status
	must(t, json.Unmarshal([]byte(got.out), &status))
	if got.code != exitDone || status.Consumer != "payment" || status.Lag != 2 || len(status.Durables) != 1 || status.Durables[0].Pending != 2 {
		t.Errorf("show: %+v", got)
	}
	got = s.run(t, "", "consumer", "show", "payment")
	if got.code != exitDone || !strings.Contains(got.out, "payment: 2 events have not ended") || !strings.Contains(got.out, "ACK PENDING") {
		t.Errorf("show for people: %+v", got)
	}
	s.send(t, &nats.Msg{Subject: s.Names().Root("ledger.inventory.7.page"), Header: nats.Header{
		"Farandole-Owner": {"4hq2xkz7ma"}, "Farandole-Page": {"page"}, "Farandole-Floor": {"12"}, "Farandole-Serial": {"3"},
	}})
	got = s.run(t, "", "consumer", "show", "inventory")
	if got.code != exitDone || !strings.Contains(got.out, "no members") || !strings.Contains(got.out, "4hq2xkz7ma (gone)") {
		t.Errorf("show of partitions: %+v", got)
	}
	got = s.run(t, "", "consumer", "list")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != exitDone || len(lines) != 3 || strings.Join(strings.Fields(lines[1]), " ") != "inventory 0 0 0 0/32 nobody -" ||
		strings.Join(strings.Fields(lines[2]), " ") != "payment 2 0 0 - nobody -" {
		t.Errorf("list: %+v", got)
	}
	for name, code := range map[string]int{"shipping": exitFailed, "Shipping": exitUsage} {
		if got := s.run(t, "", "consumer", "show", name); got.code != code || !strings.Contains(got.err, name) {
			t.Errorf("show %s: %+v, want exit code %d", name, got, code)
		}
	}
}

func TestConsumerListLooksAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, append([]string{"consumer", "list", "--watch", "--json"}, s.flags...), streams{in: strings.NewReader(""), out: in, err: io.Discard})
		in.CloseWithError(io.EOF)
		ended <- code
	}()
	looks := json.NewDecoder(out)
	var doc struct{ Consumers []consumer.Status }
	must(t, looks.Decode(&doc))
	if doc.Consumers == nil || len(doc.Consumers) > 0 {
		t.Errorf("listed are %+v, want none", doc.Consumers)
	}
	durable(t, s)
	for len(doc.Consumers) == 0 {
		must(t, looks.Decode(&doc))
	}
	cancel()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

func TestConsumerPauseAndResume(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	got := s.run(t, "", "consumer", "pause", "payment", "--for", "1h", "--why", "a change", "--json")
	var paused struct {
		Consumer, By, Why string
		Until             time.Time
	}
	must(t, json.Unmarshal([]byte(got.out), &paused))
	if got.code != exitDone || paused.Consumer != "payment" || paused.Why != "a change" || paused.By == "" || !strings.Contains(got.err, "consumer paused") {
		t.Errorf("pause: %+v", got)
	}
	c, err := s.JetStream().Consumer(t.Context(), s.Names().EventsStream(), "payment")
	must(t, err)
	if info := c.CachedInfo(); !info.Paused || !info.Config.PauseUntil.Equal(paused.Until) {
		t.Errorf("the server has %+v, want a pause until %v", info.Config.PauseUntil, paused.Until)
	}
	for _, args := range [][]string{{"consumer", "list"}, {"consumer", "show", "payment"}, {"consumer", "show", "payment", "--json"}} {
		if got := s.run(t, "", args...); got.code != exitDone || !strings.Contains(got.out, "operator") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := s.run(t, "", "consumer", "resume", "payment"); got.code != exitDone || got.out != "payment: resumed\n" || !strings.Contains(got.err, "consumer resumed") {
		t.Errorf("resume: %+v", got)
	}
	if got := s.run(t, "", "consumer", "resume", "payment", "--json"); got.code != exitDone || !strings.Contains(got.out, `"was_paused":false`) {
		t.Errorf("resume again: %+v", got)
	}
	for args, code := range map[string]int{"pause payment --for 0s": exitUsage, "pause No": exitUsage, "resume No": exitUsage, "pause shipping": exitFailed} {
		if got := s.run(t, "", append([]string{"consumer"}, strings.Split(args, " ")...)...); got.code != code {
			t.Errorf("%s: %+v, want code %d", args, got, code)
		}
	}
}
