package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestStatusTellsWhetherSomebodyRunsAConsumer(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]kind{"durable": nil, "partitions": partitionKind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = kind
			held := make(chan struct{})
			r := handling(func(ctx context.Context, _ event.Event) (consumer.Step, error) {
				select {
				case <-held:
				case <-ctx.Done():
				}
				return consumer.Step{}, ctx.Err()
			})
			look := func(check func(consumer.Status) bool) {
				t.Helper()
				bustest.Eventually(t, soon, func() error {
					status, err := consumer.Look(t.Context(), s.bus, "payment")
					if err == nil && !check(status) {
						err = fmt.Errorf("status is %+v", status)
					}
					return err
				})
			}
			cfg := config()
			cfg.HandlerTimeout, cfg.Lease = 10*time.Second, 10*time.Second
			p := s.start(cfg, r, nil)
			look(func(c consumer.Status) bool { return c.Workers == 1 && !c.Unattended && c.Oldest.IsZero() })
			before := time.Now().Add(-time.Minute) // the server's clock is this machine's
			s.publish(placed.New("ord-1", orderData{}))
			look(func(c consumer.Status) bool {
				return c.Workers == 1 && !c.Unattended && c.Lag == 1 && c.Oldest.After(before) && !c.Oldest.After(time.Now())
			})
			close(held)
			look(func(c consumer.Status) bool { return c.Lag == 0 && c.Oldest.IsZero() })
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			look(func(c consumer.Status) bool { return c.Workers == 0 && c.Unattended })
		})
	}
}
