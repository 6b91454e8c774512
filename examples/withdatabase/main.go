// Command withdatabase is a shop that keeps its orders in a SQL database. It places
// the orders that its arguments name, and writes an invoice for each. Row and event
// commit together, or neither does.
//
// The database is the SQLite file shop.db, or the Postgres at DATABASE_URL; it
// connects to NATS_URL. docs/outbox.md explains it.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
	"github.com/farandole/farandole/outbox/sqlite"
)

// Order is the data of purchase.placed.v1.
type Order struct {
	ID    string `json:"id"`
	Cents int64  `json:"cents"`
}

// Invoice is the data of invoice.written.v1.
type Invoice struct {
	OrderID string `json:"order_id"`
}

var (
	placed  = event.Define[Order]("purchase.placed.v1")
	written = event.Define[Invoice]("invoice.written.v1")
)

type shop struct{ outbox *outbox.Outbox }

// open opens Postgres if url says where, else a SQLite file.
func open(url, file string) (_ *shop, err error) {
	cfg := outbox.Config{Dialect: outbox.SQLite, Prefix: "shop_", Source: "/shop"}
	var db *sql.DB
	if url != "" {
		cfg.Dialect = outbox.Postgres
		db, err = postgres.Open(url)
	} else {
		db, err = sqlite.Open(file)
	}
	if err != nil {
		return nil, err
	}
	o, err := outbox.New(db, cfg)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{o}, nil
}

// migrate makes the tables: the outbox's, and the shop's own.
func (s *shop) migrate(ctx context.Context) error {
	if err := s.outbox.Migrate(ctx); err != nil {
		return err
	}
	for _, table := range []string{"orders (id TEXT PRIMARY KEY, cents BIGINT NOT NULL)", "invoices (order_id TEXT PRIMARY KEY)"} {
		if _, err := s.outbox.DB().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+table); err != nil {
			return err
		}
	}
	return nil
}

// place writes an order and its event in one transaction. An order that is there
// already is left alone.
func (s *shop) place(ctx context.Context, o Order) error {
	draft := placed.New(event.Key(o.ID), o)
	draft.ID = o.ID // placing it again is the same event
	e, err := s.outbox.Seal(draft)
	if err != nil {
		return err
	}
	tx, err := s.outbox.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	_, err = tx.ExecContext(ctx, "INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT DO NOTHING", o.ID, o.Cents)
	if err != nil {
		return err
	}
	if err := s.outbox.Add(ctx, tx, e); err != nil && !errors.Is(err, outbox.ErrDuplicate) {
		return err
	}
	return tx.Commit()
}

// invoice reacts to one placed order. Its transaction also marks the event as
// handled, and holds what follows from it.
func (s *shop) invoice(ctx context.Context, _ event.Event, o Order) (consumer.Step, error) {
	tx, err := outbox.Tx(ctx)
	if err != nil {
		return consumer.Step{}, err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO invoices (order_id) VALUES ($1)", o.ID); err != nil {
		return consumer.Step{}, err
	}
	return consumer.Emit(written.New(event.Key(o.ID), Invoice{OrderID: o.ID})), nil
}

// serve consumes, and publishes what is committed, until ctx ends.
func (s *shop) serve(ctx context.Context, b *bus.Bus) error {
	ledger, err := outbox.NewLedger(s.outbox, b, outbox.LedgerConfig{})
	if err != nil {
		return err
	}
	registry := consumer.NewRegistry()
	consumer.Handle(registry, placed, s.invoice)
	c, err := consumer.New(b, registry, consumer.Config{Name: "invoices", Source: "/shop", Ledger: ledger})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func run(ctx context.Context, s *shop, cfg bus.Config, orders []string) (err error) {
	defer func() { err = errors.Join(err, s.outbox.DB().Close()) }()
	if err := s.migrate(ctx); err != nil {
		return err
	}
	for _, id := range orders { // before NATS is there: the rows wait
		if err := s.place(ctx, Order{ID: id, Cents: 1999}); err != nil {
			return err
		}
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return s.serve(ctx, b)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s, err := open(os.Getenv("DATABASE_URL"), "shop.db")
	if err == nil {
		err = run(ctx, s, bus.Config{URL: os.Getenv("NATS_URL")}, os.Args[1:])
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "withdatabase:", err)
		os.Exit(1)
	}
}
