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
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// Two workers without claims get each event, and both change one document: of
// each event one step takes effect, and no change is lost.
func TestStreamFaults_two_workers_of_one_event(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	race(t, b, newStream(t, b, dedup.StreamConfig{}), newStream(t, b, dedup.StreamConfig{}), 50, func() {})
}

// The same while the stream changes its leader.
func TestStreamFaults_leader_changes(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	names := event.Names{Prefix: bustest.Prefix()}
	b := bustest.Connect(t, bus.Config{URL: servers[0].URL(), Names: names, PublishTimeout: time.Second})
	bustest.Provision(t, b, topology.Config{Replicas: 3})
	other := bustest.Connect(t, bus.Config{URL: servers[1].URL(), Names: names, PublishTimeout: time.Second})
	race(t, b, newStream(t, b, dedup.StreamConfig{}), newStream(t, other, dedup.StreamConfig{}), 200, func() {
		bustest.Eventually(t, soon, func() error { // nobody answers while there is no leader
			_, err := b.Conn().Request(b.APIPrefix()+"STREAM.LEADER.STEPDOWN."+b.Names().EventsStream(), nil, time.Second)
			return err
		})
	})
}

// race lets each of n events be completed by both ledgers at once, with an
// event of its own and one more in a document that all count in. trouble
// happens five times meanwhile.
func race(t *testing.T, b *bus.Bus, one, two *dedup.Stream, n int, trouble func()) {
	t.Helper()
	counter := b.Names().StateSubject("payment", "counter")
	count := func(l *dedup.Stream, id string) error {
		mine, err := l.Claim(t.Context(), handed(event.NewEventKey("/shop", id)))
		if err != nil {
			return err
		}
		for deadline := time.Now().Add(soon); ; {
			d, err := l.Document(t.Context(), counter)
			if err == nil {
				count, _ := strconv.Atoi(string(d.Data)) //nolint:errcheck // none is 0
				err = l.Complete(t.Context(), mine, []*nats.Msg{
					newEvent(b, id), dedup.PutDocument(counter, []byte(strconv.Itoa(count+1)), d.Version),
				})
			}
			if err == nil || errors.Is(err, dedup.ErrSettled) || time.Now().After(deadline) {
				return err
			}
		}
	}
	var errs []error
	for part := range 5 {
		errs = append(errs, all(2*n/5, func(i int) error {
			if i == n/5 {
				trouble()
			}
			return count([]*dedup.Stream{one, two}[i%2], fmt.Sprint(part, "-", i/2))
		})...)
	}
	settled := 0
	for i, err := range errs {
		switch {
		case errors.Is(err, dedup.ErrSettled):
			settled++
		case err != nil:
			t.Errorf("step %d: %v", i, err)
		}
	}
	if settled != n {
		t.Errorf("%d steps were told that the event is settled, want %d", settled, n)
	}
	if got := subjects(t, b, "events.>"); len(got) != n {
		t.Errorf("%d events have an effect, want %d", len(got), n)
	} else {
		for subject, times := range got {
			if times != 1 {
				t.Errorf("%s is stored %d times", subject, times)
			}
		}
	}
	d, err := one.Committed(t.Context(), counter)
	if err != nil || string(d.Data) != strconv.Itoa(n) {
		t.Errorf("counted %s, %v; want %d", d.Data, err, n)
	}
}
