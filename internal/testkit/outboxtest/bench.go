package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// benchRows is what a drain begins with.
const benchRows = 20_000

// Bench measures how fast a relay drains an outbox of 20,000 pending rows, each
// of a key of its own with 200 bytes of data, beside publishing as many events
// from memory. It reports rows/s of both, and their ratio. The database is empty.
func Bench(b *testing.B, f Factory, target string) {
	b.Helper()
	db, err := f.Open(target)
	fatal(b, err)
	defer func() { fatal(b, db.Close()) }()
	names := event.Names{Prefix: bustest.Prefix()}
	conn := bustest.Connect(b, bus.Config{InProcess: bustest.StartServer(b, bustest.ServerConfig{}), Names: names})
	bustest.Provision(b, conn, topology.Config{})
	o, err := outbox.New(db, outbox.Config{Dialect: f.Dialect, Names: names, Source: "/outboxtest"})
	fatal(b, err)
	fatal(b, o.Migrate(b.Context()))
	publish(b, conn, load(b, o)) // warms up
	var direct, relayed time.Duration
	for b.Loop() {
		events := load(b, o)
		begin := time.Now()
		publish(b, conn, events)
		direct += time.Since(begin)
		relayed += drain(b, o, conn)
	}
	b.ReportMetric(float64(benchRows*b.N)/direct.Seconds(), "raw/s")
	b.ReportMetric(float64(benchRows*b.N)/relayed.Seconds(), "drained/s")
	b.ReportMetric(direct.Seconds()/relayed.Seconds(), "ratio")
}

// drain fills the outbox and returns how long a relay takes to empty it.
func drain(b *testing.B, o *outbox.Outbox, conn *bus.Bus) time.Duration {
	b.Helper()
	fatal(b, add(b.Context(), o, load(b, o)...))
	relay, err := outbox.NewRelay(o, conn, outbox.RelayConfig{})
	fatal(b, err)
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	begin := time.Now()
	go func() { ended <- relay.Run(ctx) }()
	bustest.Eventually(b, 10*soon, func() error {
		var open bool
		err := o.DB().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox WHERE status IN ('PENDING', 'PROCESSING'))").Scan(&open)
		if err == nil && open {
			err = errors.New("rows are open")
		}
		return err
	})
	took := time.Since(begin)
	stop()
	fatal(b, <-ended)
	return took
}

// load makes events.
func load(b *testing.B, o *outbox.Outbox) []event.Event {
	b.Helper()
	data := fmt.Appendf(nil, "%200d", 1)
	events := make([]event.Event, benchRows)
	for i := range events {
		var err error
		events[i], err = o.Seal(event.Draft{Type: placed, Key: event.Key(fmt.Sprint("ord-", i)), ContentType: event.ContentTypeJSON, Data: data})
		fatal(b, err)
	}
	return events
}

// publish publishes events without waiting for each.
func publish(b *testing.B, conn *bus.Bus, events []event.Event) {
	b.Helper()
	sent := make([]*bus.Pending, len(events))
	for i, e := range events {
		var err error
		sent[i], err = conn.PublishAsync(b.Context(), e)
		fatal(b, err)
	}
	for _, p := range sent {
		_, err := p.Wait(b.Context())
		fatal(b, err)
	}
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
