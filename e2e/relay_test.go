package e2e_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/testkit/pgtest"
)

// onDatabases runs a test with the order service on each database.
func onDatabases(t *testing.T, test func(t *testing.T, orders string)) {
	t.Helper()
	for name, orders := range map[string]func(testing.TB) string{
		"SQLite":   func(testing.TB) string { return "" }, // a new file
		"Postgres": pgtest.Database,
	} {
		t.Run(name, func(t *testing.T) { test(t, orders(t)) })
	}
}

// addRelay starts a process that publishes order's outbox, beside order's own relay.
func (f *fleet) addRelay() *member {
	f.t.Helper()
	where := []string{"--database-url", f.orders}
	if filepath.IsAbs(f.orders) {
		where = []string{"--store", f.orders}
	}
	return f.addProcess("relay", "relay", append([]string{"--server", f.nats, "--lease", lease}, where...)...)
}

// Order services and a relay of their database are killed at random moments,
// again and again, while customers order. What was committed is published, and
// takes effect once.
func TestKills_of_services_and_relay(t *testing.T) {
	t.Parallel()
	const seed = 7
	rounds, killsEach := 1, 5
	if long() {
		rounds, killsEach = 20, 5
	}
	onDatabases(t, func(t *testing.T, orders string) {
		t.Helper()
		s := &storm{fleet: onOneNode(t, orders), seed: seed}
		s.targets = append(s.of("order"), s.addRelay())
		s.ready()
		s.rage(rounds, killsEach)
		if long() { // TestKills does so always
			s.duplicate(30)
		}
		t.Logf("%d kills, %d orders, seed %d", s.kills, len(s.ids), seed)
	})
}

// The NATS server is down for long (a minute with FARANDOLE_LONG=1) while customers go on ordering: their
// orders are committed. When it is back they are published, each order's events
// in their order, by processes that were not started anew.
func TestOutage_of_nats(t *testing.T) {
	t.Parallel()
	outage := 3 * time.Second
	if long() {
		outage = time.Minute
	}
	onDatabases(t, func(t *testing.T, orders string) {
		t.Helper()
		s := &storm{fleet: onOneNode(t, orders)}
		nats := s.members[0]
		nats.kill()
		var ids []string
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for begin := time.Now(); time.Since(begin) < outage; <-tick.C {
			id := s.mustPlace(t, fmt.Sprint("outage-", len(ids)), "ada")
			if len(ids)%10 == 0 {
				s.mustCancel(t, id)
			}
			ids = append(ids, id)
		}
		nats.again()
		s.ids = ids
		counted.outages.Add(1)
		counted.orders.Add(int64(len(ids)))
		s.final(ids)
		s.audit()
		for _, m := range s.of("order") {
			if m.fell > 0 {
				t.Errorf("%s has ended %d times", m.name, m.fell)
			}
		}
		s.placedFirst(ids)
		t.Logf("%d orders during %v without NATS", len(ids), outage)
	})
}

// of returns the members that run a service.
func (f *fleet) of(service string) []*member {
	var found []*member
	for _, m := range f.members {
		if strings.HasPrefix(m.name, service+"-") {
			found = append(found, m)
		}
	}
	return found
}

// placedFirst checks that each order's own events are stored in the order in
// which they were committed.
func (f *fleet) placedFirst(ids []string) {
	f.t.Helper()
	types := map[event.Key][]string{}
	err := follow.Read(f.t.Context(), f.bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, problem := m.Event()
		if problem != "" {
			return fmt.Errorf("%s: %s", m.Subject, problem)
		}
		types[event.PartitionKey(e)] = append(types[event.PartitionKey(e)], e.Type())
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for i, id := range ids {
		got := types[event.Key(id)]
		placed, cancelled := slices.Index(got, "order.placed.v1"), slices.Index(got, "order.cancel_requested.v1")
		if placed != 0 || i%10 == 0 && cancelled < 0 {
			f.t.Errorf("order %s: events %v", id, got)
		}
	}
}

// mustCancel asks for an order to be cancelled.
func (s shop) mustCancel(t testing.TB, id string) {
	t.Helper()
	bustest.Eventually(t, patience, func() error {
		_, err := do(t.Context(), "POST", s.url+"/orders/"+id+"/cancel", nil, nil)
		return err
	})
}
