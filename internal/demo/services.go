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
	// lease is short, so that what a crash left is taken over quickly.
	lease          = 2 * time.Second
	handlerTimeout = 1500 * time.Millisecond
	// A transaction of the order service's may have to wait for others, which on
	// a busy machine takes longer than a handler of the other services.
	orderLease   = 2 * lease
	orderTimeout = orderLease - lease/4
	// gatewayTimeout is less patient than a slow customer's bank: the next try
	// finds the charge made.
	gatewayTimeout = time.Second
	// attempts outlast the gateway's worst streak of failures.
	attempts  = 8
	baseDelay = 50 * time.Millisecond
	maxDelay  = time.Second
)

// settings are those of every service's consumer. A grace of next to nothing
// makes a killed life end at once; a life that is stopped has nothing to do.
func settings(log zerolog.Logger) consumer.Config {
	return consumer.Config{
		Concurrency: concurrency, Lease: lease, HandlerTimeout: handlerTimeout, Grace: time.Millisecond,
		Retry:  consumer.RetryPolicy{MaxAttempts: attempts, BaseDelay: baseDelay, MaxDelay: maxDelay},
		Logger: log,
	}
}

// orderService has its HTTP interface on a port, and its orders in a database,
// that outlive its crashes.
type orderService struct {
	addr  string
	store *store
	log   zerolog.Logger
}

// newOrderService finds a free port.
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
		//nolint:errcheck // a killed process has nobody to tell; run closes again and tells
		_, _ = server.Close(), db.Close()
	}}, nil
}

// paymentService keeps its fault over its lives.
type paymentService struct {
	gatewayURL string
	ledger     ledger.Kind
	log        zerolog.Logger

	mu      sync.Mutex
	healthy bool
	current *payment.Service
}

func (p *paymentService) start(b *bus.Bus) (process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	consumer := settings(p.log)
	var err error
	if consumer.Ledger, err = p.ledger.Open(b, true, p.log); err != nil {
		return process{}, err
	}
	s, err := payment.New(b, payment.Config{
		GatewayURL: p.gatewayURL, Timeout: gatewayTimeout, NoPoison: p.healthy, Consumer: consumer, Logger: p.log,
	})
	if err != nil {
		return process{}, err
	}
	p.current = s
	return process{run: s.Run}, nil
}

// heal switches the fault off, for this life and the next ones.
func (p *paymentService) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healthy = true
	if p.current != nil {
		p.current.SetPoison(false)
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
