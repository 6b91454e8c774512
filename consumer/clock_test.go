package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// The server's clock decides when a long retry comes, whatever this process's
// clock shows: an hour behind it, all attempts would be spent within a second.
func TestDeferredRetryIsTimedByTheServer(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"worker behind": time.Hour, "worker ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			const delay = 10 * time.Minute
			p := s.prepare(deferring(), handling(func(context.Context, event.Event) (consumer.Step, error) {
				return consumer.Step{}, consumer.RetryAfter(errFlaky, delay)
			}), nil)
			consumer.ServerAhead(p.Consumer, ahead)
			// Where its time has passed the server publishes the retry at once: it is looked at on its way.
			scheduled := make(chan string, 1)
			sub, err := s.bus.Conn().Subscribe(s.bus.Names().TimersFilter("payment", dlq.TimerRetry), func(m *nats.Msg) {
				select {
				case scheduled <- m.Header.Get(jetstream.ScheduleHeader):
				default:
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Unsubscribe() //nolint:errcheck // the connection ends with the test
			if err := s.bus.Conn().Flush(); err != nil {
				t.Fatal(err)
			}
			before := time.Now()
			p.run()
			defer func() {
				if err := p.stop(); err != nil {
					t.Error(err)
				}
			}()
			s.publish(draft("bad"))
			select {
			case at := <-scheduled:
				due, err := time.Parse("@at "+time.RFC3339Nano, at)
				late := due.Sub(before.Add(ahead + delay))
				if err != nil || late < -2*time.Second || late > soon {
					t.Errorf("scheduled %s, %v off: %v", at, late, err)
				}
			case <-time.After(soon):
				t.Fatal("nothing was scheduled")
			}
		})
	}
}

// The server's clock also says whether an event has expired.
func TestExpiryIsJudgedByTheServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ahead   time.Duration
		expired bool
	}{"worker behind": {time.Hour, true}, "worker ahead": {-time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.prepare(config(), counting(new(tally)), nil)
			consumer.ServerAhead(p.Consumer, tt.ahead)
			p.run()
			defer func() {
				if err := p.stop(); err != nil {
					t.Error(err)
				}
			}()
			d := draft("old")
			d.Extensions = map[string]string{"expirytime": time.Now().Add(tt.ahead / 2).Format(time.RFC3339)}
			s.publish(d)
			bustest.Eventually(t, soon, func() bool { return p.Stats().Parked+p.Stats().Handled == 1 })
			if parked := p.Stats().Parked == 1; parked != tt.expired {
				t.Errorf("expired is %v, want %v", parked, tt.expired)
			}
		})
	}
}
