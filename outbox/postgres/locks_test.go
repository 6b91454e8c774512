package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pg/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// Somebody locks a row by hand while a relay has it: the statement that settles
// it gives up, with the locks that it holds on others, and says so.
func TestRelayDoesNotWaitForLocksForever(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}, PublishTimeout: time.Second})
	r := newRig(t, pgtest.Database(t), bustest.Provision(t, b, topology.Config{}))
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	must(t, err)
	answering := func(yes bool) {
		cfg := stream.CachedInfo().Config
		cfg.NoAck = !yes
		_, err := b.JetStream().UpdateStream(t.Context(), cfg)
		must(t, err)
	}
	answering(false) // so that the relay holds the row for a while
	r.insert("", r.event("a", "1"))
	relay, err := outbox.NewRelay(r.outbox, b, outbox.RelayConfig{})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	defer func() { stop(); must(t, <-done) }()

	r.statuses("PROCESSING 1")
	locking, err := r.outbox.DB().BeginTx(t.Context(), nil)
	must(t, err)
	defer locking.Rollback() //nolint:errcheck // after a commit it does nothing
	_, err = locking.ExecContext(t.Context(), "SELECT FROM "+table(r.outbox)+" FOR UPDATE")
	must(t, err)
	answering(true)
	bustest.Eventually(t, within, func() bool {
		err := relay.Health()
		return err != nil && strings.Contains(err.Error(), "lock timeout")
	})
	must(t, locking.Commit())
	r.statuses("PUBLISHED 1")
	bustest.Eventually(t, within, relay.Health)
}
