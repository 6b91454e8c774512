package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 60 * time.Second

type orderData struct {
	Amount int64 `json:"amount"`
}

var (
	placed   = event.Define[orderData]("order.placed.v1")
	paid     = event.Define[orderData]("payment.captured.v1")
	reserved = event.Define[orderData]("inventory.reserved.v1")
)

var errFlaky = errors.New("dependency is down")

// system is one Farandole system on the shared server, seen from outside.
type system struct {
	tb     testing.TB
	bus    *bus.Bus // of publishers and observers; consumers have their own
	server nats.InProcessConnProvider
	// url and user replace server for tests with a server of their own.
	url, user string
	// publishTimeout of its consumers' connections; 0 is the default.
	publishTimeout time.Duration
	// kind is its consumers' ledger; nil is the KV ledger.
	kind kind
}

func newSystem(tb testing.TB) *system {
	tb.Helper()
	return &system{tb: tb, bus: bustest.NewBus(tb), server: bustest.Server(tb)}
}

// process is one running consumer with a connection and a ledger of its own,
// as a process of a service has them.
type process struct {
	*consumer.Consumer
	s      *system
	cfg    consumer.Config
	bus    *bus.Bus
	ledger ledger

	cancel context.CancelFunc
	once   sync.Once
	done   chan struct{}
	err    error // of Run, once done is closed
}

// config is short-tempered, so that tests are quick.
func config() consumer.Config {
	return consumer.Config{
		Name: "payment", Concurrency: 8, InFlight: 64,
		HandlerTimeout: 2 * time.Second, Lease: 10 * time.Second, Grace: 2 * time.Second, MaxCrashes: 3,
		Retry: consumer.RetryPolicy{MaxAttempts: 3, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}
}

// connect makes a connection as a process of this system would.
func (s *system) connect() *bus.Bus {
	s.tb.Helper()
	return bustest.Connect(s.tb, bus.Config{
		InProcess: s.server, URL: s.url, User: s.user, Password: s.user, Names: s.bus.Names(),
		PublishTimeout: s.publishTimeout,
	})
}

// start runs a consumer. wrap, which may be nil, puts something around the
// ledger. The consumer is stopped at the end of the test, and has to be clean then.
func (s *system) start(cfg consumer.Config, r *consumer.Registry, wrap func(p *process, l dedup.Ledger) dedup.Ledger) *process {
	s.tb.Helper()
	p := s.prepare(cfg, r, wrap)
	p.run()
	s.tb.Cleanup(func() {
		if err := p.stop(); err != nil {
			s.tb.Errorf("Run: %v", err)
		}
	})
	return p
}

// prepare makes a consumer and does not run it.
func (s *system) prepare(cfg consumer.Config, r *consumer.Registry, wrap func(p *process, l dedup.Ledger) dedup.Ledger) *process {
	s.tb.Helper()
	p := &process{s: s, bus: s.connect(), done: make(chan struct{})}
	p.ledger = s.open(p.bus)
	switch {
	case wrap != nil:
		cfg.Ledger = wrap(p, p.ledger)
	case cfg.Ledger == nil:
		cfg.Ledger = p.ledger
	}
	p.cfg = cfg
	var err error
	if p.Consumer, err = consumer.New(p.bus, r, cfg); err != nil {
		s.tb.Fatal(err)
	}
	return p
}

func (p *process) run() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		p.err = p.Run(ctx)
	}()
}

// stop ends the consumer, returns what Run returned, and checks that nothing
// it held is left.
func (p *process) stop() error {
	p.s.tb.Helper()
	p.cancel()
	<-p.done
	p.once.Do(func() {
		if errors.Is(p.err, consumer.ErrAbandoned) {
			return
		}
		if n := p.Stats().InFlight; n != 0 {
			p.s.tb.Errorf("%d deliveries in flight after Run", n)
		}
		if n := consumer.FreeBudget(p.Consumer); n != p.cfg.InFlight {
			p.s.tb.Errorf("free budget is %d after Run, want %d", n, p.cfg.InFlight)
		}
	})
	return p.err
}

// crash cuts the process's connection: whatever it does from now on, nothing
// of it reaches the server, nor the database if it has one.
func (p *process) crash() {
	if l, ok := p.ledger.(*sqlLedger); ok {
		l.crash()
	}
	p.bus.Conn().Close()
}

// draft is an order of its own key.
func draft(id string) event.Draft {
	d := placed.New(event.Key(id), orderData{Amount: 2500})
	d.ID = id
	return d
}

func (s *system) publish(drafts ...event.Draft) []event.Event {
	s.tb.Helper()
	events := make([]event.Event, 0, len(drafts))
	for _, d := range drafts {
		e, err := s.bus.Seal(d)
		if err == nil {
			_, err = s.bus.Publish(s.tb.Context(), e)
		}
		if err != nil {
			s.tb.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

func (s *system) publishN(n int) []event.Event {
	s.tb.Helper()
	drafts := make([]event.Draft, n)
	for i := range drafts {
		drafts[i] = draft(fmt.Sprintf("o-%d", i))
	}
	return s.publish(drafts...)
}

// inject stores a raw message, as a foreign producer might write it.
func (s *system) inject(header nats.Header, data string) uint64 {
	s.tb.Helper()
	ack, err := s.bus.JetStream().PublishMsg(s.tb.Context(), &nats.Msg{
		Subject: s.bus.Names().EventSubject(placed.Type(), "o-1"), Header: header, Data: []byte(data),
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	return ack.Sequence
}

// again stores another copy of an event, which the duplicate window does not see.
func (s *system) again(e event.Event) {
	s.tb.Helper()
	m, err := s.bus.Message(e)
	if err != nil {
		s.tb.Fatal(err)
	}
	m.Header.Del(nats.MsgIdHdr)
	if _, err := s.bus.JetStream().PublishMsg(s.tb.Context(), m); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *system) durable(name event.Consumer) (*jetstream.ConsumerInfo, error) {
	c, err := s.bus.JetStream().Consumer(s.tb.Context(), s.bus.Names().EventsStream(), string(name))
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

// settled waits until the consumer has settled everything there is. That is
// something: a durable that was just made says that nothing is pending before it
// has counted.
func (s *system) settled(name event.Consumer) {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		if l := s.open(s.bus).Partitions(); l != nil {
			return s.settledByOwners(l, name)
		}
		info, err := s.durable(name)
		if err != nil {
			return err
		}
		if info.NumPending > 0 || info.NumAckPending > 0 || info.Delivered.Consumer == 0 {
			return fmt.Errorf("%s: %d not delivered, %d not acknowledged", name, info.NumPending, info.NumAckPending)
		}
		if l, ok := s.open(s.bus).(*sqlLedger); ok {
			return l.drained(s.tb.Context())
		}
		return nil
	})
}

// settledByOwners looks at the durables of those who own partitions.
func (s *system) settledByOwners(l *dedup.Partitions, name event.Consumer) error {
	heads, err := l.Heads(s.tb.Context(), name)
	if err != nil {
		return err
	}
	owners, some := map[string]bool{}, false
	for _, h := range heads {
		owners[h.Owner] = true
	}
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().EventsStream())
	if err != nil {
		return err
	}
	list := stream.ListConsumers(s.tb.Context())
	var all []*jetstream.ConsumerInfo
	for info := range list.Info() { // to its end: the list has a goroutine
		all = append(all, info)
	}
	if err := list.Err(); err != nil {
		return err
	}
	for _, info := range all {
		owner, _, _ := strings.Cut(strings.TrimPrefix(info.Name, string(name)+"-"), "-")
		if !owners[owner] {
			continue
		}
		if some = some || info.Delivered.Consumer > 0; info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Errorf("%s: %d not delivered, %d not acknowledged", info.Name, info.NumPending, info.NumAckPending)
		}
	}
	if !some {
		return fmt.Errorf("%s: nothing was delivered yet", name)
	}
	return nil
}

// stored returns the stored events of a type, oldest first.
func (s *system) stored(t event.Type) []event.Event {
	s.tb.Helper()
	var events []event.Event
	for _, m := range s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(t)) {
		e, err := event.Decode(m.Header, m.Data)
		if err != nil {
			s.tb.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// storedOn is the subject on which the stream has an event.
func (s *system) storedOn(t event.Type, k event.Key) string {
	return s.bus.Names().Stored(s.bus.Names().EventSubject(t, k), event.DefaultPartitions)
}

// messages reads what a stream holds on a subject.
func (s *system) messages(stream, subject string) (messages []*nats.Msg) {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		messages = nil
		err := s.bus.ScanMessages(s.tb.Context(), stream, bus.ScanConfig{Filter: subject, From: 1}, func(m *nats.Msg, _ *nats.MsgMetadata) (bool, error) {
			messages = append(messages, m)
			return true, nil
		})
		if err != nil && !errors.Is(err, bus.ErrUnavailable) {
			s.tb.Fatal(err)
		}
		return err // a stream may be without a leader for a moment
	})
	return messages
}

// mark is what the ledger knows of an event.
func (s *system) mark(name event.Consumer, key event.EventKey) (m dedup.Mark) {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() (err error) {
		m, _, err = s.open(s.bus).Mark(s.tb.Context(), name, key)
		if err != nil && !errors.Is(err, bus.ErrUnavailable) {
			s.tb.Fatal(err)
		}
		return err
	})
	return m
}

// counting handles orders by counting them.
func counting(runs *tally) *consumer.Registry {
	return handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(e.ID())
		return consumer.Step{}, nil
	})
}

// handling handles orders by h.
func handling(h func(context.Context, event.Event) (consumer.Step, error)) *consumer.Registry {
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(ctx context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		return h(ctx, e)
	})
	return r
}

// pay is the step that follows from an order.
func pay(e event.Event) consumer.Step {
	return consumer.Emit(paid.New(event.PartitionKey(e), orderData{Amount: 2500}))
}

func unhealthy(tb testing.TB, p *process) {
	tb.Helper()
	bustest.Eventually(tb, soon, func() bool { return errors.Is(p.Health(), consumer.ErrUnhealthy) })
}

// privateSystem is a system on a server of its own, which the test may stop.
func privateSystem(t *testing.T, tune func(*server.Options), cfg bus.Config) (*system, *bustest.TestServer) {
	t.Helper()
	srv := bustest.StartServer(t, bustest.ServerConfig{Tune: tune})
	cfg.URL, cfg.Names = srv.URL(), event.Names{Prefix: bustest.Prefix()}
	s := &system{tb: t, bus: bustest.Connect(t, cfg), url: srv.URL()}
	bustest.Provision(t, s.bus, topology.Config{})
	return s, srv
}

// bareSystem has no streams yet.
func bareSystem(t *testing.T) *system {
	t.Helper()
	s := &system{tb: t, server: bustest.Server(t)}
	s.bus = bustest.Connect(t, bus.Config{InProcess: s.server, Names: event.Names{Prefix: bustest.Prefix()}})
	return s
}
