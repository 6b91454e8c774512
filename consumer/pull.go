package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
)

const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 2 * time.Second // how often the server says that an idle pull is still open
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
	filters := []string{redrives}
	for _, t := range c.registry.types {
		filters = append(filters, n.TypeFilter(t))
	}
	return []*feed{c.newFeed(n.EventsStream(), true, c.cfg.InFlight, filters...)}
}

func (c *Consumer) newFeed(stream string, own bool, places int, filters ...string) *feed {
	return &feed{
		stream: stream, own: own, name: string(c.cfg.Name), budget: newBudget(places),
		durable: durable.New(durable.Config{
			Bus: c.bus, Ledger: c.ledger, Consumer: c.cfg.Name, Stream: stream, Subjects: filters,
			Lease: c.cfg.Lease, MaxAckPending: c.cfg.MaxAckPending, Logger: c.log,
		}),
	}
}

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

// The server does not answer a denied pull or acknowledgement. It reports the denial
// on the connection, once for each message.

func (c *Consumer) pullSubject(f *feed) string {
	return c.bus.APIPrefix() + "CONSUMER.MSG.NEXT." + f.stream + "." + f.name
}

// denied handles the next denial. It returns an error if pulls or deliveries are
// denied. A denied acknowledgement only makes the consumer unhealthy.
func (c *Consumer) denied(denials *bus.Denials, f *feed, inbox string) error {
	subject, err := denials.Next()
	switch {
	case err == nil: // the bus was closed
	case subject == c.pullSubject(f):
		return fmt.Errorf("consumer: %s: pull: %w", c.cfg.Name, err)
	case subject == inbox:
		return fmt.Errorf("consumer: %s: deliveries: %w", c.cfg.Name, err)
	case isAck(subject, f.stream, f.name):
		c.health.Set(partAcks, ackDenied(subject, f.stream, f.name, err))
	}
	return nil
}

// isAck reports whether the subject acknowledges a delivery of the durable, as in
// $JS.ACK.EVENTS.payment.1.2.3.4.5. Newer servers put a domain and an account
// before the stream.
func isAck(subject, stream, durable string) bool {
	return strings.HasPrefix(subject, ackRoot) && strings.Contains(subject, "."+stream+"."+durable+".")
}

const ackRoot = "$JS.ACK."

// ackDenied names the subject that has to be granted, $JS.ACK.EVENTS.payment.>,
// besides the one that was denied.
func ackDenied(subject, stream, durable string, err error) error {
	before, _, _ := strings.Cut(subject, "."+stream+"."+durable+".")
	return fmt.Errorf("%w (for all deliveries: %s.%s.%s.>)", err, before, stream, durable)
}

// pullRequest is the body of $JS.API.CONSUMER.MSG.NEXT.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// puller counts the messages that open pulls have asked for and not yet brought.
type puller struct {
	statuses  chan *nats.Msg
	mu        sync.Mutex
	owed      int
	last      time.Time // when the last message or status came from the server
	idleSince time.Time // when the last open pull ended
}

func (p *puller) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed
}

// idle returns how long no pull has been open.
func (p *puller) idle() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed > 0 || p.idleSince.IsZero() {
		return 0
	}
	return time.Since(p.idleSince)
}

func (p *puller) asked(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		p.last = time.Now()
	}
	p.owed += n
}

func (p *puller) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// delivered counts one message that has arrived. If its pull was written off, with a
// lost connection say, its place was freed: then it takes one beyond the budget.
func (p *puller) delivered(b *budget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		b.overdraw()
		return
	}
	if p.owed--; p.owed == 0 {
		p.idleSince = time.Now()
	}
}

// silent reports whether a pull is open and the server has said nothing for d.
func (p *puller) silent(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed > 0 && time.Since(p.last) > d
}

// forget writes off all open pulls and frees their places.
func (p *puller) forget(b *budget) { p.writeOff(b, -1) }

// writeOff frees the places of n messages that will not come; -1 is all.
func (p *puller) writeOff(b *budget, n int) {
	p.mu.Lock()
	if n < 0 || n > p.owed {
		n = p.owed
	}
	if p.owed -= n; p.owed == 0 && n > 0 {
		p.idleSince = time.Now()
	}
	p.mu.Unlock()
	b.release(n)
}

// status handles a message about a pull, such as 408 for one that has expired (ADR-13
// and ADR-37 of NATS). It returns an error when the durable has to be bound again.
func (p *puller) status(m *nats.Msg, b *budget) error {
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	if code == "100" { // idle heartbeat
		return nil
	}
	owed := -1
	if v := m.Header.Get("Nats-Pending-Messages"); v != "" {
		if n, err := strconv.Atoi(v); err == nil {
			owed = n
		}
	}
	p.writeOff(b, owed)
	switch {
	case code == "408", code == "404": // the pull has expired, or no message is there
		return nil
	case code == "409" && text != "Consumer Deleted" && text != "Consumer is push based":
		return nil // leadership change, server shutdown, batch completed: pull again
	}
	return fmt.Errorf("%w: %s %s", errUnbound, code, text)
}
