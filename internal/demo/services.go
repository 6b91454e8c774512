package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/inventory"
	"github.com/farandole/farandole/services/order"
	"github.com/farandole/farandole/services/payment"
)

const (
	concurrency = 32
	// lease is short, so that the events of a killed service are soon handled again.
	lease          = 2 * time.Second
	handlerTimeout = 1500 * time.Millisecond
	// The order service has more time: its transactions wait for each other, which
	// takes long on a busy machine.
	orderLease   = 2 * lease
	orderTimeout = orderLease - lease/4
	// gatewayTimeout is shorter than the two seconds of a slow customer. The first try
	// times out, and the second one finds the charge made.
	gatewayTimeout = time.Second
	// attempts is more than the gateway fails in a row.
	attempts  = 8
	baseDelay = 50 * time.Millisecond
	maxDelay  = time.Second
)

// settings returns the settings of every service's consumer. The grace period is
// short so that a killed instance ends at once. A service that is stopped has
// nothing under way.
func settings(log zerolog.Logger) consumer.Config {
	return consumer.Config{
		Concurrency: concurrency, Lease: lease, HandlerTimeout: handlerTimeout, Grace: time.Millisecond,
		Retry:  consumer.RetryPolicy{MaxAttempts: attempts, BaseDelay: baseDelay, MaxDelay: maxDelay},
		Logger: log,
	}
}

// orderService starts instances of one replica of the order service. They listen on the
// same address; all replicas open the same database.
type orderService struct {
	addr  string
	store *store
	log   zerolog.Logger
}

// newOrderService chooses a free port.
func newOrderService(st *store, log zerolog.Logger) (*orderService, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("demo: order: %w", err)
	}
	return &orderService{addr: l.Addr().String(), store: st, log: log}, l.Close()
}

func (o *orderService) url() string { return "http://" + o.addr }

func (o *orderService) start(b *bus.Bus) (process, error) {
	db, err := o.store.open()
	if err != nil {
		return process{}, err
	}
	consumer := settings(o.log)
	consumer.Lease, consumer.HandlerTimeout = orderLease, orderTimeout
	consumer.Concurrency = 0 // as many as the database is good for
	s, err := order.New(b, db, order.Config{
		Consumer: consumer, Relay: outbox.RelayConfig{Lease: orderLease, BaseDelay: baseDelay, MaxDelay: maxDelay}, Logger: o.log,
	})
	if err != nil {
		return process{}, errors.Join(err, db.Close())
	}
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return process{}, errors.Join(err, db.Close())
	}
	server := host.NewServer(s.Handler())
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(listener) }()
	run := func(ctx context.Context) error {
		err := errors.Join(s.Run(ctx), server.Close())
		if served := <-serving; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return errors.Join(err, db.Close())
	}
	return process{run: run, cut: func() {
		//nolint:errcheck // run closes both again and returns the errors
		_, _ = server.Close(), db.Close()
	}}, nil
}

// paymentService starts instances of the payment service. It remembers over crashes
// whether the fault "poison" is on.
type paymentService struct {
	gatewayURL string
	ledger     ledger.Kind
	flaky      bool // the gateway fails now and then
	log        zerolog.Logger

	mu      sync.Mutex
	healthy bool // the fault is off
	started []*payment.Service
}

func (p *paymentService) start(b *bus.Bus) (process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	consumer := settings(p.log)
	var err error
	if consumer.Ledger, err = p.ledger.Open(b, true, p.log); err != nil {
		return process{}, err
	}
	cfg := payment.Config{
		GatewayURL: p.gatewayURL, Timeout: gatewayTimeout, NoPoison: p.healthy, Consumer: consumer, Logger: p.log,
	}
	if p.flaky { // three probes in a row seldom succeed: the breaker stayed open for ten seconds and more
		cfg.Breaker.Probes = 1
	}
	s, err := payment.New(b, cfg)
	if err != nil {
		return process{}, err
	}
	p.started = append(p.started, s)
	return process{run: s.Run}, nil
}

// switchFaultOff switches the fault off, in all instances and the next ones.
func (p *paymentService) switchFaultOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healthy = true
	for _, s := range p.started {
		s.SetPoison(false)
	}
}

func startInventory(log zerolog.Logger) func(b *bus.Bus) (process, error) {
	return func(b *bus.Bus) (process, error) {
		s, err := inventory.New(b, inventory.Config{Consumer: settings(log), Logger: log})
		if err != nil {
			return process{}, err
		}
		return process{run: s.Run}, nil
	}
}
