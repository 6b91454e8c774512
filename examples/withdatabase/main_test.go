package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/topology"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each order has one invoice and one event of it, however often it is placed
// and its event comes, over a restart: in SQLite, and in the Postgres at DATABASE_URL if
// there is one.
func TestShop(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	databases := map[string]func() (*shop, error){"SQLite": func() (*shop, error) { return open("", file) }}
	if url := os.Getenv("DATABASE_URL"); url != "" {
		databases["Postgres"] = func() (*shop, error) { return open(url, "") }
	}
	for name, reopen := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := bustest.StartServer(t, bustest.ServerConfig{}) // the shop's names have no prefix
			b := bustest.Provision(t, bustest.Connect(t, bus.Config{InProcess: server, Source: "/shop"}), topology.Config{})
			for range 2 {
				s, err := reopen()
				must(t, err)
				watcher, err := reopen()
				must(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- run(ctx, s, bus.Config{InProcess: server}, []string{"ord-1", "ord-2", "ord-1"})
				}()
				bustest.Eventually(t, time.Minute, func() error {
					select {
					case err := <-ended:
						t.Fatalf("it has ended: %v", err)
					default:
					}
					return settled(t.Context(), b, watcher)
				})
				draft := placed.New("ord-1", Order{ID: "ord-1"})
				draft.ID = "ord-1"
				again, err := b.Seal(draft)
				must(t, err)
				m, err := b.Message(again)
				must(t, err)
				m.Header.Del("Nats-Msg-Id") // the server does not recognise it
				p, err := b.Send(ctx, m)
				must(t, err)
				stored, err := p.Wait(ctx)
				must(t, err)
				bustest.Eventually(t, time.Minute, func() error { return consumed(t.Context(), b, stored.Sequence) })
				must(t, settled(t.Context(), b, watcher))
				stop()
				must(t, <-ended)
				must(t, watcher.outbox.DB().Close())
			}
		})
	}
}

// settled reports that there are two invoices and two events of them.
func settled(ctx context.Context, b *bus.Bus, s *shop) error {
	var n int
	if err := s.outbox.DB().QueryRowContext(ctx, "SELECT count(*) FROM invoices").Scan(&n); err != nil || n != 2 {
		return fmt.Errorf("%d invoices, error %w", n, err)
	}
	stream, err := b.JetStream().Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(b.Names().TypeFilter(written.Type())))
	if err != nil {
		return err
	}
	messages := uint64(0)
	for _, n := range info.State.Subjects {
		messages += n
	}
	if messages != 2 {
		return fmt.Errorf("%d events of invoices", messages)
	}
	return nil
}

// consumed reports that the consumer has settled the message and all before it.
func consumed(ctx context.Context, b *bus.Bus, sequence uint64) error {
	c, err := b.JetStream().Consumer(ctx, b.Names().EventsStream(), "invoices")
	if err != nil {
		return err
	}
	info, err := c.Info(ctx)
	if err == nil && (info.Delivered.Stream < sequence || info.NumAckPending > 0) {
		err = fmt.Errorf("%d of %d delivered, %d not acknowledged", info.Delivered.Stream, sequence, info.NumAckPending)
	}
	return err
}
