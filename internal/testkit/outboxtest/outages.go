package outboxtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// Situations in which no stream takes messages, until mend.

func natsDown(r *rig) (mend func()) {
	r.server.Stop(r)
	return func() { r.server.Restart(r) }
}

func noStream(r *rig) (mend func()) {
	r.ok(r.bus.JetStream().DeleteStream(r.Context(), r.bus.Names().EventsStream()))
	return func() {
		_, err := topology.Provision(r.Context(), r.bus, topology.New(r.bus.Names(), topology.Config{}))
		r.ok(err)
	}
}

func denied(r *rig) (mend func()) {
	r.server.Reload(r, users(&server.SubjectPermission{Deny: []string{"*.events.>"}}))
	return func() { r.server.Reload(r, users(nil)) }
}

func noAck(r *rig) (mend func()) {
	r.change(func(c *jetstream.StreamConfig) { c.NoAck = true })
	return func() { r.change(func(c *jetstream.StreamConfig) { c.NoAck = false }) }
}

func responder(r *rig) (mend func()) {
	provision := noStream(r)
	sub, err := r.bus.Conn().Subscribe(r.bus.Names().EventsFilter(), func(m *nats.Msg) {
		if err := m.Respond([]byte("ok")); err != nil {
			r.Error(err)
		}
	})
	r.ok(err)
	r.ok(r.bus.Conn().Flush())
	return func() {
		r.ok(sub.Unsubscribe())
		provision()
	}
}

// users are those of a server, with what they may publish.
func users(publish *server.SubjectPermission) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "relay", Password: "secret", Permissions: &server.Permissions{Publish: publish}}}
	}
}

// change changes the event stream.
func (r *rig) change(do func(*jetstream.StreamConfig)) {
	r.Helper()
	stream, err := r.bus.JetStream().Stream(r.Context(), r.bus.Names().EventsStream())
	r.ok(err)
	cfg := stream.CachedInfo().Config
	do(&cfg)
	_, err = r.bus.JetStream().UpdateStream(r.Context(), cfg)
	r.ok(err)
}

// publishTimeout is short, for servers that do not answer.
const publishTimeout = time.Second

// unavailable wants that no row is marked or blamed in a situation, of which
// health says why, and that all are published when it is over.
func unavailable(why error, begin func(*rig) (mend func())) func(*rig) {
	return func(r *rig) {
		const n = 20
		mend := begin(r)
		r.add(r.events(2, keys("ord-", n)...)...)
		registry := prometheus.NewRegistry()
		relay := r.relay(outbox.RelayConfig{BaseDelay: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond, MaxAttempts: 1, Metrics: registry})
		r.unhealthy(relay, why)
		if r.bus.Health() == nil { // while the connection is down it does not even try
			r.metric(registry, "farandole_outbox_failures_total", func(tries float64) bool { return tries >= 2*n })
		}
		if got := r.count("outbox WHERE status IN ('PENDING', 'PROCESSING') AND attempts = 0"); got != 2*n {
			r.Fatalf("%d rows are to be published and were not blamed, want %d", got, 2*n)
		}
		mend()
		r.eventually(counts{outbox.Published: 2 * n})
		bustest.Eventually(r, soon, relay.Health)
		r.wantOrder(r.wantOnce(2 * n))
	}
}

// unhealthy waits until health says want.
func (r *rig) unhealthy(relay *running, want error) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		if err := relay.Health(); !errors.Is(err, want) {
			return fmt.Errorf("health is %w, want %w", err, want)
		}
		return nil
	})
}

// metric waits until the sum of a metric's values is good.
func (r *rig) metric(from prometheus.Gatherer, name string, good func(float64) bool) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		families, err := from.Gather()
		if err != nil {
			return err
		}
		sum := 0.0
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == name {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		if !good(sum) {
			return fmt.Errorf("%s is %v", name, sum)
		}
		return nil
	})
}

// outage stops NATS while writers go on.
func outage(r *rig) {
	const n, writers = 40, 4
	relay := r.relay(outbox.RelayConfig{Batch: 20})
	var work sync.WaitGroup
	half, again := make(chan struct{}, writers), make(chan struct{})
	for w := range writers {
		key := fmt.Sprint("ord-", w)
		work.Go(func() {
			for i := range n {
				if i == n/2 {
					half <- struct{}{}
					<-again
				}
				if err := add(r.Context(), r.outbox, r.event(key, fmt.Sprintf("%s-%d", key, i))); err != nil {
					r.Errorf("add: %v", err)
				}
			}
		})
	}
	for range writers {
		<-half
	}
	r.server.Stop(r)
	r.unhealthy(relay, bus.ErrUnavailable)
	close(again)
	work.Wait() // nobody minds
	if got := r.count("outbox WHERE status <> 'PUBLISHED'"); got < writers*n/2 {
		r.Errorf("%d rows wait for the server, want %d or more", got, writers*n/2)
	}
	r.server.Restart(r)
	r.eventually(counts{outbox.Published: writers * n})
	bustest.Eventually(r, soon, relay.Health)
	r.wantOrder(r.wantOnce(writers * n))
}
