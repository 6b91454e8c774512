package consumer

import (
	"context"

	"github.com/farandole/farandole/consumer/internal/durable"
)

// feed is one stream from which this consumer pulls, through one durable.
type feed struct {
	stream  string
	own     bool // the subjects have Farandole's form: they end in the event's key
	durable *durable.Durable
	name    string  // the durable's name at the server: "payment", or "payment_catchup"
	budget  *budget // from which deliveries take their places
	// catchingUp says that the pull is from the durable that catches up.
	catchingUp bool
	// slice are the partitions that the feed reads, in place of a durable that
	// replicas share; nil for a ledger without partitions.
	slice *slice
}

// bind brings the durable to what this process needs.
func (f *feed) bind(ctx context.Context) (err error) {
	if f.slice == nil {
		return f.durable.Bind(ctx)
	}
	f.name, err = f.slice.bind(ctx, f.name)
	return err
}

// dropped reports whether an operator has dropped a delivery.
func (f *feed) dropped(d *delivery) bool {
	return f.durable != nil && f.durable.Dropped(d.msg.Subject, d.sequence)
}

// broken asks for another durable, in the midst of a pull.
func (f *feed) broken() <-chan struct{} {
	if f.slice == nil {
		return nil
	}
	return f.slice.broken
}

// newFeeds returns the feeds of this consumer. Without From that is the event stream.
// With From it is the foreign stream, and the event stream for redrives only.
func (c *Consumer) newFeeds() []*feed {
	if c.ledger.Partitions() != nil {
		return nil // they come and go with the partitions that are this process's
	}
	n := c.bus.Names()
	redrives := n.RedriveFilter(c.cfg.Name)
	if from := c.cfg.From; from != nil {
		forRedrives := c.cfg.forRedrives()
		return []*feed{
			c.newFeed(n.EventsStream(), true, forRedrives, redrives),
			c.newFeed(from.Name, false, c.cfg.InFlight-forRedrives, from.Subjects...),
		}
	}
	filters := append([]string{redrives}, c.registry.filters(n)...)
	return []*feed{c.newFeed(n.EventsStream(), true, c.cfg.InFlight, filters...)}
}

func (c *Consumer) newFeed(stream string, own bool, places int, filters ...string) *feed {
	return &feed{
		stream: stream, own: own, name: string(c.cfg.Name), budget: newBudget(places),
		durable: durable.New(durable.Config{
			Bus: c.bus, Ledger: c.ledger, Consumer: c.cfg.Name, Stream: stream, Subjects: filters,
			Lease: c.cfg.Lease, MaxAckPending: c.cfg.MaxAckPending, Start: durable.Start(c.cfg.Start), Logger: c.log,
		}),
	}
}
