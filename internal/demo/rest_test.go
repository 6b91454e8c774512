package demo

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/audit"
)

func TestAwaitRest_says_what_is_open(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	durable := func(name, filter string) {
		t.Helper()
		_, err := b.JetStream().CreateConsumer(t.Context(), b.Names().EventsStream(), jetstream.ConsumerConfig{
			Durable: name, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: filter,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	durable("payment", b.Names().EventsFilter())
	st, err := newStore(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.close(); err != nil {
			t.Error(err)
		}
	})
	o, err := st.Outbox(outbox.Config{Names: b.Names(), Source: "/order"})
	if err == nil {
		err = o.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	restless := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // for one look at least
		defer cancel()
		if err := awaitRest(ctx, b, st.Database); !errors.Is(err, errRestless) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	restless("32 events are open") // nobody has inventory's partitions
	durable("inventory", strings.TrimSuffix(b.Names().EventsFilter(), ">")+"none")
	if err := awaitRest(t.Context(), b, st.Database); err != nil {
		t.Fatalf("at rest: %v", err)
	}
	e, err := b.Seal(event.Draft{Type: typePlaced, Key: "ord-1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	restless("1 events are open")

	tx, err := st.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = o.Seal(event.Draft{Type: typePlaced, Key: "ord-2"}); err == nil {
		err = o.Add(t.Context(), tx, e)
	}
	if err = errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	restless("2 events are open")
}

func TestActor_tells_when_a_life_ends_by_itself(t *testing.T) {
	t.Parallel()
	reason := errors.New("no bucket")
	died := make(chan error, 1)
	a := &supervisor{
		name: "payment", failed: func(err error) { died <- err },
		connect: func(context.Context, string) (*bus.Bus, error) { return bustest.NewBus(t), nil },
		start: func(*bus.Bus) (process, error) {
			return process{run: func(context.Context) error { return reason }}, nil
		},
	}
	if err := a.startService(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-died; !errors.Is(err, reason) || !strings.Contains(err.Error(), "payment") {
		t.Errorf("died of %v", err)
	}
	if err := a.stop(); !errors.Is(err, reason) {
		t.Errorf("stopped with %v", err)
	}
}

// What a killed instance of the order service had not committed stays uncommitted,
// and its rows stay as they were, until the service is started again.
func TestKill_commits_nothing_afterwards(t *testing.T) {
	t.Parallel()
	cfg := Config{Orders: 40, Seed: 5, Faults: None}.withDefaults()
	s, err := startSystem(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	shop := newClient(s.shops, cfg.Concurrency)
	defer shop.close()
	var placed atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := placeAll(t.Context(), shop, plan(cfg.Orders, cfg.Seed, cfg.Faults), cfg, &placed)
		done <- err
	}()
	bustest.Eventually(t, time.Minute, func() bool { return placed.Load() > 5 })

	s.supervisors[0].kill()
	rows := func() (text string) {
		t.Helper()
		err := s.store.DB.QueryRowContext(t.Context(), `SELECT CAST(
			(SELECT count(*) FROM orders WHERE status = 'placed') || ' ' || (SELECT count(*) FROM orders) || ' ' ||
			(SELECT count(*) FROM outbox WHERE status = 'PUBLISHED') || ' ' || (SELECT count(*) FROM outbox) || ' ' ||
			(SELECT count(*) FROM inbox) AS text)`).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	dead := rows()
	if n := placed.Load(); n == int64(cfg.Orders) {
		t.Fatal("killed too late")
	}
	for range 20 {
		if now := rows(); now != dead {
			t.Fatalf("the dead wrote: %s became %s", dead, now)
		}
		<-time.After(10 * time.Millisecond)
	}
	if err := errors.Join(s.supervisors[0].startService(t.Context()), <-done); err != nil {
		t.Fatal(err)
	}
	if err := awaitRest(t.Context(), s.bus, s.store.Database); err != nil {
		t.Fatal(err)
	}
	if r, err := audit.Run(t.Context(), s.bus, s.store.DB, s.gateway.AdminURL); err != nil || !r.OK || r.Orders != cfg.Orders {
		t.Errorf("%d of %d orders, %v, %v", r.Orders, cfg.Orders, r.Violations, err)
	}
}
