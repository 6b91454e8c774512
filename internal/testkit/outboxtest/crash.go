package outboxtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// shortWindow is a duplicate window that ends before a lease does.
const shortWindow = time.Second

// killedBeforeMark kills a relay process after the stream has acknowledged its
// rows and before any of them is marked. At most so many copies are stored, and
// each event takes effect once.
func killedBeforeMark(copies int) func(*rig) {
	return func(r *rig) {
		const n = 20
		effects := r.consume()
		r.add(r.events(1, keys("ord-", n)...)...)
		markable := r.unmarkable()
		first := r.relayProcess(relayWork{Lease: lease})
		r.says(&first.log, "unmarkable")
		r.wantOnce(n)
		first.kill()
		r.eventually(counts{outbox.Processing: n})

		markable()
		r.relay(outbox.RelayConfig{Lease: lease})
		r.eventually(counts{outbox.Published: n})
		times := map[string]int{}
		for _, m := range r.stored() {
			times[m.id]++
		}
		for id, n := range times {
			if n > copies {
				r.Errorf("event %s is stored %d times, want at most %d", id, n, copies)
			}
		}
		bustest.Eventually(r, soon, func() error { return effects.want(n) })
	}
}

// effects counts how often handlers have taken effect, by event id.
type effects struct {
	mu sync.Mutex
	by map[string]int
}

func (e *effects) want(n int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, times := range e.by {
		if times != 1 {
			return fmt.Errorf("event %s took effect %d times", id, times)
		}
	}
	if len(e.by) != n {
		return fmt.Errorf("%d events took effect, want %d", len(e.by), n)
	}
	return nil
}

// consume runs a consumer with a ledger to the end of the test.
func (r *rig) consume() *effects {
	r.Helper()
	e := &effects{by: map[string]int{}}
	registry := consumer.NewRegistry()
	consumer.Handle(registry, event.Define[string](placed), func(_ context.Context, ev event.Event, _ string) (consumer.Step, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.by[ev.ID()]++
		return consumer.Step{}, nil
	})
	c, err := consumer.New(r.bus, registry, consumer.Config{Name: "effects"})
	r.ok(err)
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Errorf("consumer: %v", err)
		}
	})
	return e
}

// silence is a server on which the rig's subjects are stored and never
// acknowledged, so that whoever publishes there waits.
type silence struct {
	*bus.Bus
	server *bustest.TestServer
	stream jetstream.Stream
}

func (r *rig) silence() silence {
	r.Helper()
	s := silence{server: bustest.StartServer(r, bustest.ServerConfig{})}
	// Who publishes gives up late, so that a slow machine sees it wait.
	s.Bus = bustest.Connect(r, bus.Config{InProcess: s.server, Names: r.bus.Names(), PublishTimeout: 15 * time.Second})
	var err error
	s.stream, err = s.JetStream().CreateStream(r.Context(), jetstream.StreamConfig{
		Name: "SILENCE", Subjects: []string{s.Names().EventsFilter()}, NoAck: true, Storage: jetstream.MemoryStorage,
	})
	r.ok(err)
	return s
}

// heard waits until so many messages were published there.
func (r *rig) heard(s silence, n uint64) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		info, err := s.stream.Info(r.Context())
		if err == nil && info.State.Msgs < n {
			err = fmt.Errorf("%d messages, want %d", info.State.Msgs, n)
		}
		return err
	})
}

// killedWithClaims kills a relay process that holds 50 rows while another relay runs.
func killedWithClaims(r *rig) {
	const n = 50
	r.add(r.events(1, keys("ord-", n)...)...)
	// Of so small batches it has no room for more than the 50: the others go to the other relay.
	first := r.relayProcess(relayWork{Lease: 2 * lease, Batch: 16, URL: r.silence().server.URL()})
	r.eventually(counts{outbox.Processing: n})
	r.relay(outbox.RelayConfig{})
	r.add(r.events(1, keys("free-", n)...)...)
	r.becomes(n, "outbox WHERE status = 'PUBLISHED' AND key LIKE 'free-%'")
	first.kill()
	r.eventually(counts{outbox.Published: 2 * n})
	r.wantOnce(2 * n)
}

// staleOwner has a relay give up rows that another one has taken over meanwhile.
func staleOwner(r *rig) {
	const n = 10
	r.add(r.events(1, keys("ord-", n)...)...)
	silence := r.silence()
	relay := r.relayOn(r.outbox, silence.Bus, outbox.RelayConfig{Lease: lease})
	r.heard(silence, n)
	// As a claim does, with a lease that does not end. Rows that the relay has given up by
	// then are taken when it has them again.
	bustest.Eventually(r, soon, func() bool {
		r.exec("UPDATE outbox SET owner = 'another', due_at = " + r.past(-3600) + " WHERE status = 'PROCESSING'")
		return r.count("outbox WHERE owner = 'another'") == n
	})
	r.says(&relay.log, "another relay has rows")
	if got := r.count("outbox WHERE status = 'PROCESSING' AND owner = 'another' AND attempts = 0"); got != n {
		r.Errorf("%d rows are as the new owner left them, want %d", got, n)
	}
}

// restored begins with a database as it was some time ago: a relay worked on
// rows at that moment, and rows that it holds as pending were published since.
func restored(r *rig) {
	const n = 20
	all := keys("ord-", n)
	r.add(r.events(3, all...)...)
	relay := r.relay(outbox.RelayConfig{})
	r.eventually(counts{outbox.Published: 3 * n})
	relay.stop()
	r.exec("UPDATE outbox SET status = 'PENDING', published_at = NULL WHERE id > $1", n)
	r.exec("UPDATE outbox SET status = 'PROCESSING', owner = 'of the backup', due_at = "+r.past(3600)+" WHERE id > $1 AND id <= $2", n, 2*n)
	for _, key := range all {
		r.add(r.event(key, key+"-3"))
	}
	r.relay(outbox.RelayConfig{})
	r.eventually(counts{outbox.Published: 4 * n})
	r.wantOrder(r.wantOnce(4 * n))
}

// ends is a relay that is told to end while it waits for acknowledgements.
func ends(r *rig) {
	const n = 10
	r.add(r.events(3, keys("ord-", n)...)...)
	silence := r.silence()
	relay := r.relayOn(r.outbox, silence.Bus, outbox.RelayConfig{Lease: lease})
	r.heard(silence, n)
	relay.stop()
	r.eventually(counts{outbox.Pending: 3 * n})
	if got := r.count("outbox WHERE attempts > 0 OR owner IS NOT NULL"); got != 0 {
		r.Errorf("%d rows have spent an attempt or have an owner", got)
	}
	r.relay(outbox.RelayConfig{})
	r.eventually(counts{outbox.Published: 3 * n})
	r.wantOrder(r.wantOnce(3 * n))
}
