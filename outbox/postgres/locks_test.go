package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// Somebody locks a row by hand while a relay has it: the statement that settles
// it gives up, with the locks that it holds on others, and says so.
func TestRelayDoesNotWaitForLocksForever(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}, PublishTimeout: time.Second})
	bustest.Provision(t, b, topology.Config{})
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	must(t, err)
	answering := func(yes bool) {
		cfg := stream.CachedInfo().Config
		cfg.NoAck = !yes
		_, err := b.JetStream().UpdateStream(t.Context(), cfg)
		must(t, err)
	}
	answering(false) // so that the relay holds the row for a while
	s := startOn(t, pgtest.Database(t), b, outbox.RelayConfig{})
	s.add(t, 1, "a")
	bustest.Eventually(t, soon, func() bool {
		stats, err := s.outbox.Stats(t.Context())
		return err == nil && stats.Processing == 1
	})
	locking, err := s.outbox.DB().BeginTx(t.Context(), nil)
	must(t, err)
	defer locking.Rollback() //nolint:errcheck // after a commit it does nothing
	_, err = locking.ExecContext(t.Context(), "SELECT FROM outbox FOR UPDATE")
	must(t, err)
	answering(true)
	bustest.Eventually(t, soon, func() bool {
		err := s.relay.Health()
		return err != nil && strings.Contains(err.Error(), "lock timeout")
	})
	must(t, locking.Commit())
	bustest.Eventually(t, soon, func() bool {
		stats, err := s.outbox.Stats(t.Context())
		return err == nil && stats == outbox.Stats{}
	})
	bustest.Eventually(t, soon, s.relay.Health)
}
