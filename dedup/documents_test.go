package dedup_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// Two processes change one document for events of their own partitions: no change is
// lost, and each event takes effect once.
func TestDocuments_that_two_processes_change(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	count(t, b, [2]*deduptest.Owner{newOwner(t, b, 1, dedup.PartitionsConfig{}), newOwner(t, b, 2, dedup.PartitionsConfig{})}, 90, func() {})
}

// The same while the stream changes its leader.
func TestDocuments_while_leaders_change(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	names := event.Names{Prefix: bustest.Prefix()}
	b := bustest.Connect(t, bus.Config{URL: servers[0].URL(), Names: names, PublishTimeout: time.Second})
	bustest.Provision(t, b, topology.Config{Replicas: 3})
	other := bustest.Connect(t, bus.Config{URL: servers[1].URL(), Names: names, PublishTimeout: time.Second})
	count(t, b, [2]*deduptest.Owner{newOwner(t, b, 1, dedup.PartitionsConfig{}), newOwner(t, other, 2, dedup.PartitionsConfig{})}, 300, func() {
		bustest.Eventually(t, soon, func() error { // nobody answers while there is no leader
			_, err := b.Conn().Request(b.APIPrefix()+"STREAM.LEADER.STEPDOWN."+b.Names().EventsStream(), nil, time.Second)
			return err
		})
	})
}

// count has two processes handle n events, each with an event of its own and one more
// in a document that all count in. trouble happens three times meanwhile.
func count(t *testing.T, b *bus.Bus, processes [2]*deduptest.Owner, n int, trouble func()) {
	t.Helper()
	counter := b.Names().StateSubject("payment", "counter")
	for part := range 3 {
		for i, err := range all(n/3, func(i int) error {
			if i == n/6 {
				trouble()
			}
			return countOne(t, processes[i%2], counter, newEvent(b, fmt.Sprint(part, "-", i)))
		}) {
			if err != nil {
				t.Errorf("step %d of part %d: %v", i, part, err)
			}
		}
	}
	got := subjects(t, b, "events.>")
	if len(got) != n {
		t.Errorf("%d events have an effect, want %d", len(got), n)
	}
	for subject, times := range got {
		if times != 1 {
			t.Errorf("%s is stored %d times", subject, times)
		}
	}
	d, err := processes[0].Committed(t.Context(), counter)
	if err != nil || string(d.Data) != strconv.Itoa(n) {
		t.Errorf("counted %s, %v; want %d", d.Data, err, n)
	}
}

// countOne handles one event as a consumer would, until it has ended.
func countOne(t *testing.T, l *deduptest.Owner, counter string, out *nats.Msg) error {
	t.Helper()
	var c *dedup.Claim
	for deadline := time.Now().Add(soon); ; {
		var err error
		if c == nil {
			c, err = l.Claim(t.Context(), handed(event.NewEventKey("/shop", out.Header.Get(nats.MsgIdHdr))))
		}
		if err == nil && c.Status == dedup.Done {
			return nil // its answer was lost
		}
		var d dedup.Document
		if err == nil {
			d, err = l.Document(t.Context(), counter)
		}
		if err == nil {
			counted, _ := strconv.Atoi(string(d.Data)) //nolint:errcheck // none is 0
			err = l.Complete(t.Context(), c, []*nats.Msg{out, dedup.PutDocument(counter, []byte(strconv.Itoa(counted+1)), d.Version)})
		}
		if errors.Is(err, dedup.ErrLeaseLost) {
			c = nil // it comes again
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
