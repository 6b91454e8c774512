package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// grants are what the consumer "payment" needs with the KV ledger, by subject of
// publish; its inbox is the one of subscribe. docs/contract.md lists them.
func grants(n event.Names) []string {
	events, marks := n.EventsStream(), "KV_"+n.Bucket("dedup")
	return []string{
		"$JS.API.INFO",
		"$JS.API.STREAM.NAMES",
		"$JS.API.STREAM.INFO." + events,
		"$JS.API.STREAM.INFO." + marks,
		"$JS.API.CONSUMER.INFO." + events + ".payment",
		"$JS.API.CONSUMER.INFO." + events + ".payment_catchup",
		"$JS.API.CONSUMER.CREATE." + events + ".payment",
		"$JS.API.CONSUMER.MSG.NEXT." + events + ".payment",
		"$JS.API.DIRECT.GET." + marks + ".>",
		"$JS.ACK." + events + ".payment.>",
		"$KV." + n.Bucket("dedup") + ".payment.>",
		n.Root("events.payment.>"),
		n.Root("dlq.payment.>"),
	}
}

const paymentInbox = "_INBOX_payment"

// permit makes users that may all, and the user payment that may what is granted.
func permit(publish []string, subscribe ...string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "payment", Password: "payment", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: append(subscribe, "none")},
			}},
		}
	}
}

// deprived is a system on a server of its own, with a consumer that lacks a grant.
type deprived struct {
	*system
	server *bustest.TestServer
	grants []string
}

func newDeprived(t *testing.T) *deprived {
	t.Helper()
	names := event.Names{Prefix: bustest.Prefix()}
	d := &deprived{grants: grants(names)}
	d.server = bustest.StartServer(t, bustest.ServerConfig{Tune: permit(d.grants, paymentInbox+".>")})
	b := bustest.Connect(t, bus.Config{URL: d.server.URL(), User: "admin", Password: "admin", Names: names})
	bustest.Provision(t, b, topology.Config{})
	d.system = &system{tb: t, bus: b}
	return d
}

// start runs a consumer as the user payment; what Run returns comes on the channel.
func (d *deprived) start(t *testing.T, r *consumer.Registry) (*consumer.Consumer, <-chan error) {
	t.Helper()
	b := bustest.Connect(t, bus.Config{
		URL: d.server.URL(), User: "payment", Password: "payment", InboxPrefix: paymentInbox, Names: d.bus.Names(),
	})
	cfg := config()
	cfg.Lease = 2 * time.Second // so long until an unacknowledged event comes again
	c, err := consumer.New(b, r, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c, ended
}

// told waits until a consumer says what it is denied, by Health or as the error
// of its Run, and checks that subject and grant are named. fell says that Run
// has ended.
func told(t *testing.T, c *consumer.Consumer, ended <-chan error, subject, grant string) (fell bool) {
	t.Helper()
	var err error
	bustest.Eventually(t, soon, func() error {
		select {
		case err = <-ended:
			fell = true
		default:
			err = c.Health()
		}
		if !errors.Is(err, bus.ErrDenied) {
			return fmt.Errorf("said %w, want a denial", err)
		}
		return nil
	})
	for _, want := range []string{strings.TrimSuffix(subject, ">"), grant} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("said %q, want %q named", err, want)
		}
	}
	return fell
}

// TestAnInboxIsNamedWhenItIsNotGranted takes the inbox from a consumer at its
// start, and while it runs, and gives it back.
func TestAnInboxIsNamedWhenItIsNotGranted(t *testing.T) {
	t.Parallel()
	d := newDeprived(t)
	succeeds := handling(func(context.Context, event.Event) (consumer.Step, error) { return consumer.Step{}, nil })
	d.server.Reload(t, permit(d.grants))
	c, ended := d.start(t, succeeds)
	if !told(t, c, ended, paymentInbox+".", "grant this user subscribe") {
		t.Error("a consumer that can hear nothing goes on")
	}

	d.server.Reload(t, permit(d.grants, paymentInbox+".>"))
	c, ended = d.start(t, succeeds)
	bustest.Eventually(t, soon, c.Health)
	d.publish(draft("before"))
	d.settled("payment")
	d.server.Reload(t, permit(d.grants))
	if told(t, c, ended, paymentInbox+".", "grant this user subscribe") {
		t.Error("a running consumer has ended")
	}
	d.publish(draft("after"))
	d.server.Reload(t, permit(d.grants, paymentInbox+".>"))
	bustest.Eventually(t, soon, func() bool { return c.Stats().Handled == 2 })
	bustest.Eventually(t, soon, c.Health)
}

// TestEachGrantIsNamedWhenItIsMissing takes from a consumer one grant after the
// other.
func TestEachGrantIsNamedWhenItIsMissing(t *testing.T) {
	t.Parallel()
	for i, name := range grants(event.Names{Prefix: "x"}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeprived(t)
			missing := d.grants[i]
			d.server.Reload(t, permit(slices.Concat(d.grants[:i], d.grants[i+1:]), paymentInbox+".>"))
			runs := new(tally)
			c, ended := d.start(t, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				if e.ID() == "bad" {
					return consumer.Step{}, consumer.Permanent(errFlaky)
				}
				if runs.add(e.ID()) == 1 { // so that the ledger is asked as well
					return consumer.Step{}, errFlaky
				}
				return consumer.Emit(paid.New(event.Key(e.ID()), orderData{})), nil
			}))
			d.publish(draft("good"), draft("bad"))
			if strings.HasSuffix(missing, "API.INFO") || strings.HasSuffix(missing, "STREAM.NAMES") {
				bustest.Eventually(t, soon, func() bool { return c.Stats().Handled == 1 && c.Stats().Parked == 1 })
				return // it works without them, and tells an outage less well
			}
			fell := told(t, c, ended, missing, "grant this user publish")
			d.server.Reload(t, permit(d.grants, paymentInbox+".>"))
			if fell { // a supervisor starts it again
				c, _ = d.start(t, handling(func(context.Context, event.Event) (consumer.Step, error) { return consumer.Step{}, nil }))
			}
			d.settled("payment")
			bustest.Eventually(t, soon, c.Health)
		})
	}
}
