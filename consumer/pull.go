package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/consumer/internal/durable"
)

const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 2 * time.Second // how often the server says that an idle pull is still open
)

// catchUpShare divides InFlight: a catch-up pulls up to InFlight/catchUpShare
// deliveries ahead, besides the InFlight of the others.
const catchUpShare = 4

// tend keeps the feed's durable as it has to be until ctx ends. It restores settings
// that others have changed, and pulls from the catch-up durable while there is one.
func (c *Consumer) tend(ctx, work context.Context, f *feed) {
	part := "durable " + f.stream
	pull := func(ctx context.Context, name string) {
		catchUp := *f
		catchUp.name, catchUp.catchingUp = name, true
		catchUp.budget = newBudget(max(1, c.cfg.InFlight/catchUpShare))
		c.pull(ctx, work, &catchUp)
	}
	f.durable.Tend(ctx, pull, func(err error) {
		if err != nil {
			c.health.Set(part, err)
			return
		}
		c.health.Clear(part)
	})
}

// pull takes deliveries from one durable until ctx ends. It asks for as many messages
// as this process has room for, and passes each one on as it arrives. Nothing waits
// in the client library's buffer. So the heartbeat renews all that the server has
// delivered, and a stop gives back all of it.
func (c *Consumer) pull(ctx, work context.Context, f *feed) {
	part := "pull " + f.name + " of " + f.stream
	reconnected := c.bus.Conn().StatusChanged(nats.CONNECTED)
	defer c.bus.Conn().RemoveStatusListener(reconnected)
	freed := f.budget.watch()
	if f.slice == nil {
		defer c.valve.reads(f.stream, f.name)()
	}
	for ctx.Err() == nil {
		if f.slice == nil && !c.valve.fetching(ctx) {
			return
		}
		err := errRebind
		if f.name != "" {
			err = c.pullBound(ctx, work, f, part, reconnected, freed)
		}
		if f.catchingUp && err != nil {
			return // tend finds out whether the catch-up durable still exists
		}
		if errors.Is(err, errRebind) {
			if err = f.bind(ctx); err == nil {
				continue
			}
		}
		for err != nil && ctx.Err() == nil { // the durable or the stream is gone
			c.health.Set(part, err)
			c.log.Error().Err(err).Str("stream", f.stream).Msg("not consuming, will bind again")
			select {
			case <-ctx.Done():
			case <-time.After(durable.RetryAfter):
				err = f.bind(ctx)
			}
		}
	}
}

// pullBound pulls with one subscription. It returns nil when ctx ends, and an error
// when the durable no longer answers.
func (c *Consumer) pullBound(ctx, work context.Context, f *feed, part string, reconnected <-chan nats.Status, freed <-chan struct{}) error {
	nc := c.bus.Conn()
	if f.slice != nil {
		defer c.valve.reads(f.stream, f.name)()
	}
	p := &puller{statuses: make(chan *nats.Msg, 64)}
	inbox := nc.NewInbox()
	denials := c.bus.Denials()
	sub, err := nc.Subscribe(inbox, func(m *nats.Msg) {
		p.heard()
		if m.Reply == "" {
			if f.slice != nil {
				f.slice.hear(m)
			}
			select {
			case p.statuses <- m:
			default: // the loop is behind: p.silent finds out later what this one said
			}
			return
		}
		p.delivered(f.budget)
		c.health.Clear(part)
		c.dispatch(work, m, f)
	})
	if err != nil {
		return fmt.Errorf("consumer: %s: subscribe: %w", c.cfg.Name, err)
	}
	sub.SetClosedHandler(func(string) { close(p.statuses) })
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("consumer: %s: subscribe: %w", c.cfg.Name, err)
	}
	// Drain instead of unsubscribing: messages that the server sent before it got the
	// unsubscribe still arrive, and are given back at once instead of after AckWait.
	defer func() {
		end := sub.Drain
		if !nc.IsConnected() { // nothing arrives, and a drain would wait for the server
			end = sub.Unsubscribe
		}
		if err := end(); err == nil {
			for range p.statuses { // waits until the subscription is closed
			}
		}
		p.forget(f.budget)
	}()

	tick := time.NewTicker(pullHeartbeat)
	defer tick.Stop()
	for {
		turned := c.valve.turned()
		if f.slice == nil && c.valve.appetite() == 0 {
			return nil // the server takes the pull for ended, and delivers nothing more
		}
		if err := c.request(p, f, inbox); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-turned:
		case <-freed:
		case <-denials.Ready():
			if err := c.denied(denials, f, inbox); err != nil {
				return err
			}
		case <-f.broken():
			return errRebind
		case <-reconnected:
			if f.slice != nil {
				return errRebind // what was on its way is lost
			}
			p.forget(f.budget) // the server dropped the pulls with the old connection
		case <-tick.C:
			c.watchPulls(ctx, p, f)
			if p.silent(2 * pullHeartbeat) {
				p.forget(f.budget)
				if f.catchingUp {
					return errUnbound
				}
				if f.slice != nil {
					return errRebind
				}
				if err := f.bind(ctx); err != nil {
					return err
				}
			}
		case m, ok := <-p.statuses:
			if !ok {
				return fmt.Errorf("%w: subscription closed", errUnbound)
			}
			if err := p.status(m, f.budget); err != nil {
				return err
			}
			c.health.Clear(part)
		}
	}
}

// request sends a pull for as many messages as there is room for. While another pull
// is open it waits until an eighth of all places is free: not every freed place is
// worth a request.
func (c *Consumer) request(p *puller, f *feed, inbox string) error {
	open, places := p.open(), f.budget.places()
	if f.slice == nil {
		places = min(places, c.valve.appetite()-c.inFlight.size())
	}
	least := 1
	if open > 0 {
		least = max(1, f.budget.places()/8)
	}
	n := f.budget.reserve(least, places-open)
	if n == 0 {
		return nil
	}
	body, err := json.Marshal(pullRequest{Batch: n, Expires: pullExpires, Heartbeat: pullHeartbeat})
	if err != nil {
		return fmt.Errorf("consumer: %s: pull request: %w", c.cfg.Name, err)
	}
	p.asked(n)
	if err := c.bus.Conn().PublishRequest(c.pullSubject(f), inbox, body); err != nil {
		return fmt.Errorf("consumer: %s: pull: %w", c.cfg.Name, err)
	}
	return nil
}

// watchPulls makes the consumer unhealthy while events are pending and no pull is
// open, because events that do not finish take all places.
func (c *Consumer) watchPulls(ctx context.Context, p *puller, f *feed) {
	part, idle := "places "+f.name+" of "+f.stream, p.idle()
	if idle < 2*c.cfg.HandlerTimeout || c.slots.begins() < c.cfg.Concurrency {
		c.health.Clear(part)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	found, err := durable.Look(ctx, c.bus, f.stream, f.name)
	if found == nil || err != nil {
		return // the next pull reports it
	}
	if n := found.NumPending; n > 0 {
		c.health.Set(part, fmt.Errorf("%w from stream %s for %v: %d events are pending, and all %d places are taken by events that do not finish",
			errStarved, f.stream, idle.Round(time.Second), n, f.budget.places()))
	}
}

func (c *Consumer) pullSubject(f *feed) string {
	return c.bus.APIPrefix() + "CONSUMER.MSG.NEXT." + f.stream + "." + f.name
}
