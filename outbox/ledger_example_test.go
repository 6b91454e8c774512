package outbox_test

import (
	"context"
	"database/sql"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// What a handler changes in its transaction, the mark of its event and the
// events that follow are committed together.
func ExampleNewLedger() {
	type order struct {
		Amount int64 `json:"amount"`
	}
	placed, captured := event.Define[order]("order.placed.v1"), event.Define[order]("payment.captured.v1")

	service := func(ctx context.Context, b *bus.Bus, db *sql.DB) error {
		o, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Names: b.Names()})
		if err != nil {
			return err
		}
		if err := o.Migrate(ctx); err != nil {
			return err
		}
		ledger, err := outbox.NewLedger(o, b, outbox.LedgerConfig{})
		if err != nil {
			return err
		}
		registry := consumer.NewRegistry()
		consumer.Handle(registry, placed, func(ctx context.Context, e event.Event, data order) (consumer.Step, error) {
			tx, err := outbox.Tx(ctx)
			if err != nil {
				return consumer.Step{}, err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE revenue SET amount = amount + $1", data.Amount); err != nil {
				return consumer.Step{}, err
			}
			return consumer.Emit(captured.New(event.PartitionKey(e), data)), nil
		})
		c, err := consumer.New(b, registry, consumer.Config{Name: "payment", Ledger: ledger})
		if err != nil {
			return err
		}
		return c.Run(ctx) // consumes, and publishes what is committed
	}
	_ = service
}
