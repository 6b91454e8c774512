package order

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/events"
)

// Name is the service's consumer name.
const Name event.Consumer = "order"

// source is the CloudEvents source of all that the service emits. It does not
// come from the connection: with it changes the identity of events.
const source = "/" + string(Name)

// Config is what the service may be told.
type Config struct {
	// Deadline is how long an order may take from when it was placed; one that
	// has not ended by then is cancelled. At least 1 s, at most
	// [consumer.MaxTimer]. Defaults to 15 min.
	Deadline time.Duration
	// Consumer are settings of the consumer; the service fills in name,
	// source, ledger, metrics and logger. Defaults to the consumer's defaults,
	// but for a Concurrency of 16 on Postgres and 4 on SQLite, which has one writer.
	Consumer consumer.Config
	// Relay are settings of the outbox's relay; the service fills in feed, metrics
	// and logger. Defaults to the relay's defaults.
	Relay outbox.RelayConfig
	// Slot is the replication slot through which the relay follows Postgres's
	// log, change data capture. Defaults to none: it claims rows.
	Slot string
	// Logger. Defaults to the bus's.
	Logger zerolog.Logger
}

const defaultDeadline = 15 * time.Minute

// Handlers at once. Each holds a connection, and on SQLite all but one wait.
const (
	postgresConcurrency = 16
	sqliteConcurrency   = 4
)

// Service takes orders and follows them to their end. It is safe for
// concurrent use. Several services, in one process or many, may share a database.
type Service struct {
	db       *database.Database
	outbox   *outbox.Outbox
	table    table
	deadline time.Duration
	room     room
	answers  *idempotency.SQL
	once     func(http.Handler) http.Handler
	log      zerolog.Logger
	registry *consumer.Registry
	consumer *consumer.Consumer
	metrics  *prometheus.Registry
	handler  http.Handler
	// migrated says that Run has seen to the tables.
	migrated atomic.Bool
}

// New checks the configuration and does no I/O. The database belongs to the
// caller, who closes it after Run has returned. Errors match
// [consumer.ErrConfig] or [outbox.ErrConfig].
func New(b *bus.Bus, db *database.Database, cfg Config) (*Service, error) {
	if cfg.Deadline == 0 {
		cfg.Deadline = defaultDeadline
	}
	if cfg.Deadline < time.Second || cfg.Deadline > consumer.MaxTimer {
		return nil, fmt.Errorf("order: %w: Deadline %v: want at least 1s and at most %v", consumer.ErrConfig, cfg.Deadline, consumer.MaxTimer)
	}
	cfg.Logger = b.LoggerOr(cfg.Logger)
	s := &Service{
		db: db, table: table{dialect: db.Dialect}, deadline: cfg.Deadline, log: cfg.Logger,
		registry: consumer.NewRegistry(), metrics: prometheus.NewRegistry(),
	}
	s.room = room{limit: roomLimit, count: func(ctx context.Context, since time.Time, most int) (int, error) {
		return s.table.underWay(ctx, s.db.DB, since, most)
	}}
	s.handler = s.routes()
	s.register()
	err := s.answerOnce()
	if err == nil {
		err = s.join(b, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("order: %w", err)
	}
	return s, nil
}

// answerOnce makes what answers a request that is repeated.
func (s *Service) answerOnce() (err error) {
	if s.answers, err = idempotency.NewSQL(s.db.DB, s.db.Dialect); err != nil {
		return err
	}
	s.once, err = idempotency.New(s.answers, idempotency.Config{
		Scope:   func(r *http.Request) string { return orderOf(r).CustomerID },
		Timeout: placeTimeout, MaxBody: maxBody, Logger: s.log,
	})
	return err
}

// join makes what ties the database to the bus: outbox, ledger and consumer.
func (s *Service) join(b *bus.Bus, cfg Config) (err error) {
	if s.outbox, err = s.db.Outbox(outbox.Config{Names: b.Names(), Source: source}); err != nil {
		return err
	}
	cfg.Relay.Metrics, cfg.Relay.Logger = s.metrics, cfg.Logger
	if cfg.Slot != "" {
		if cfg.Relay.Feed, err = s.db.Feed(s.outbox, cfg.Slot, s.metrics, cfg.Logger); err != nil {
			return err
		}
	}
	if cfg.Consumer.Concurrency == 0 {
		cfg.Consumer.Concurrency = postgresConcurrency
		if s.db.Dialect == outbox.SQLite {
			cfg.Consumer.Concurrency = sqliteConcurrency
		}
	}
	cfg.Consumer.Name, cfg.Consumer.Source = Name, source
	cfg.Consumer.Metrics, cfg.Consumer.Logger = s.metrics, cfg.Logger
	if cfg.Consumer.Ledger, err = outbox.NewLedger(s.outbox, b, outbox.LedgerConfig{Relay: cfg.Relay}); err != nil {
		return err
	}
	s.consumer, err = consumer.New(b, s.registry, cfg.Consumer)
	return err
}

// register names the events that the service reacts to.
func (s *Service) register() {
	consumer.Handle(s.registry, events.OrderPlaced, s.placed)
	consumer.Handle(s.registry, events.OrderDeadline, reaction(s, onDeadline, func(p events.Deadline) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentCaptured, reaction(s, onCaptured, func(p events.Captured) string { return p.OrderID }))
	consumer.Handle(s.registry, events.InventoryReserved, reaction(s, onReserved, func(p events.Reserved) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentDeclined, reaction(s, onDeclined, func(p events.Declined) string { return p.OrderID }))
	consumer.Handle(s.registry, events.PaymentRefunded, reaction(s, onRefunded, func(p events.Refunded) string { return p.OrderID }))
}

// Registry returns the service's handlers.
func (s *Service) Registry() *consumer.Registry { return s.registry }

// Stats returns the consumer's counts.
func (s *Service) Stats() consumer.Stats { return s.consumer.Stats() }

// Metrics are the metrics of consumer and relay.
func (s *Service) Metrics() prometheus.Gatherer { return s.metrics }

// Handler returns the HTTP interface. It answers 503 until Run has seen to the
// tables, and takes orders whether or not NATS can be reached.
func (s *Service) Handler() http.Handler { return s.handler }

// Health returns nil while the service can work, else an error that matches
// [ErrNotReady], or that of [consumer.Consumer.Health], which also tells of the relay.
func (s *Service) Health() error {
	if err := s.open(); err != nil {
		return err
	}
	return s.consumer.Health()
}

// open returns ErrNotReady until the tables are there.
func (s *Service) open() error {
	if !s.migrated.Load() {
		return ErrNotReady
	}
	return nil
}

// Run creates the tables or brings them up to date. Then it consumes, and publishes
// what is committed, until ctx ends. Errors match [ErrTables] or [outbox.ErrSchema]
// when the tables cannot be seen to, or are those of [consumer.Consumer.Run]. It
// can be called once.
func (s *Service) Run(ctx context.Context) error {
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	s.migrated.Store(true)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() { s.watchOverdue(ctx) })
	err := s.consumer.Run(ctx)
	stop()
	watching.Wait()
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	return nil
}
