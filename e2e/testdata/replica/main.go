// Command replica is one replica of a service that counts stock. Its new
// version handles a second type of event. Its effects are rows of a SQLite
// database that all replicas share.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

const name event.Consumer = "counter"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	version := os.Args[1] // "old" or "new"
	if err := run(ctx, version, os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, version, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, url, prefix, file string) (err error) {
	b, err := bus.Connect(ctx, bus.Config{Name: "counter-" + version, URL: url, Names: event.Names{Prefix: prefix}, Source: "/counter"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	db, err := sqlite.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := outbox.New(db, outbox.Config{Dialect: outbox.SQLite, Source: "/counter"})
	if err != nil {
		return err
	}
	ledger, err := outbox.NewLedger(rows, b, outbox.LedgerConfig{NoRelay: true}) // nothing is emitted
	if err != nil {
		return err
	}
	count := func(ctx context.Context, e event.Event, _ struct{}) (consumer.Step, error) {
		tx, err := outbox.Tx(ctx)
		if err != nil {
			return consumer.Step{}, err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO effects (event) VALUES ($1)", e.ID())
		return consumer.Step{}, err
	}
	r := consumer.NewRegistry()
	consumer.Handle(r, event.Define[struct{}]("parcel.arrived.v1"), count)
	if version == "new" {
		consumer.Handle(r, event.Define[struct{}]("parcel.lost.v1"), count)
	}
	c, err := consumer.New(b, r, consumer.Config{
		Name: name, HandlerTimeout: time.Second, Lease: 2 * time.Second, Ledger: ledger, Version: version,
		Retry:  consumer.RetryPolicy{MaxAttempts: 3, BaseDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
		Logger: zerolog.New(os.Stderr).Level(zerolog.InfoLevel).With().Timestamp().Str("version", version).Int("pid", os.Getpid()).Logger(),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
