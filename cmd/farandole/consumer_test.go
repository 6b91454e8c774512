package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

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
