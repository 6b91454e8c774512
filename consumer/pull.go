package consumer

import (
	"context"
	"encoding/json"
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
	pullHeartbeat = 2 * time.Second // the server says so often that an idle pull is alive
)

// feed is one stream that gives events to the journey, by a durable.
type feed struct {
	stream  string
	own     bool // the subjects are Farandole's own
	durable *durable.Durable
	name    string  // of the durable that is pulled from
	share   int     // at most so many deliveries are pulled ahead
	budget  *budget // from which they take their places
	// catchingUp says that the pull is from the durable that catches up.
	catchingUp bool
}

// newFeeds are what this consumer is fed by: the event stream; with From, the
// foreign stream, and the event stream for redrives only.
func (c *Consumer) newFeeds() []*feed {
	n := c.bus.Names()
	redrives := n.RedriveFilter(c.cfg.Name)
	if from := c.cfg.From; from != nil {
		some := c.cfg.forRedrives()
		return []*feed{
			c.newFeed(n.EventsStream(), true, some, redrives),
			c.newFeed(from.Name, false, c.cfg.InFlight-some, from.Subjects...),
		}
	}
	filters := []string{redrives}
	for _, t := range c.registry.types {
		filters = append(filters, n.TypeFilter(t))
	}
	return []*feed{c.newFeed(n.EventsStream(), true, c.cfg.InFlight, filters...)}
}

func (c *Consumer) newFeed(stream string, own bool, share int, filters ...string) *feed {
	return &feed{
		stream: stream, own: own, name: string(c.cfg.Name), share: share, budget: newBudget(share),
		durable: durable.New(durable.Config{
			Bus: c.bus, Ledger: c.ledger, Consumer: c.cfg.Name, Stream: stream, Subjects: filters,
			Lease: c.cfg.Lease, MaxAckPending: c.cfg.MaxAckPending, Logger: c.log,
		}),
	}
}

// catchUpShare is the part of InFlight that a catch-up has besides.
const catchUpShare = 4

// tend keeps a feed's durable as it has to be, and pulls from the one that catches
// up, until ctx ends.
func (c *Consumer) tend(ctx, work context.Context, f *feed) {
	part := "durable " + f.stream
	pull := func(ctx context.Context, name string) {
		catchUp := *f
		catchUp.name, catchUp.catchingUp = name, true
		catchUp.share = max(1, c.cfg.InFlight/catchUpShare)
		catchUp.budget = newBudget(catchUp.share)
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

// pull takes deliveries from one durable until ctx ends. It keeps one subscription
// and asks for as many messages as this process has room for. So everything that
// the server has handed out is in flight here, under the heartbeat, and a stop
// gives back all of it.
func (c *Consumer) pull(ctx, work context.Context, f *feed) {
	part := "pull " + f.name + " of " + f.stream
	reconnected := c.bus.Conn().StatusChanged(nats.CONNECTED)
	defer c.bus.Conn().RemoveStatusListener(reconnected)
	freed := f.budget.watch()
	for ctx.Err() == nil {
		err := c.pullBound(ctx, work, f, part, reconnected, freed)
		if f.catchingUp && err != nil {
			return // whoever tends the durable finds out what there is
		}
		for err != nil && ctx.Err() == nil { // the durable is gone, or its stream
			c.health.Set(part, err)
			c.log.Error().Err(err).Str("stream", f.stream).Msg("not consuming, will bind again")
			select {
			case <-ctx.Done():
			case <-time.After(durable.RetryAfter):
				err = f.durable.Bind(ctx)
			}
		}
	}
}

// pullBound pulls from the durable until ctx ends (nil) or the durable does
// not answer any more.
func (c *Consumer) pullBound(ctx, work context.Context, f *feed, part string, reconnected <-chan nats.Status, freed <-chan struct{}) error {
	nc := c.bus.Conn()
	p := &puller{statuses: make(chan *nats.Msg, 64)}
	inbox := nc.NewInbox()
	denials := c.bus.Denials()
	sub, err := nc.Subscribe(inbox, func(m *nats.Msg) {
		p.heard()
		if m.Reply == "" {
			select {
			case p.statuses <- m:
			default: // the loop is behind; the heartbeat check finds whatever this one said
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
	// Draining, not unsubscribing: what the server sent before it knew still
	// arrives and is given back at once instead of after its ack wait.
	defer func() {
		end := sub.Drain
		if !nc.IsConnected() { // nothing can arrive, and a drain would wait for the server
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
		if err := c.request(p, f, inbox); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-freed:
		case <-denials.Ready():
			if err := c.denied(denials, f, inbox); err != nil {
				return err
			}
		case <-reconnected:
			p.forget(f.budget) // the server forgot the pulls with the connection
		case <-tick.C:
			c.watchPulls(ctx, p, f)
			if p.silent(2 * pullHeartbeat) {
				p.forget(f.budget)
				if f.catchingUp {
					return errUnbound
				}
				if err := f.durable.Bind(ctx); err != nil {
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

// request asks for what there is room for: anything when no pull is open, and
// a worthwhile number when one is.
func (c *Consumer) request(p *puller, f *feed, inbox string) error {
	open := p.open()
	least := 1
	if open > 0 {
		least = max(1, f.share/8)
	}
	n := f.budget.reserve(least, f.share-open)
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

// watchPulls turns the consumer unhealthy while something is pending on a
// source and nobody pulls: all its places are taken, by events that do not end.
func (c *Consumer) watchPulls(ctx context.Context, p *puller, f *feed) {
	part, idle := "places "+f.name+" of "+f.stream, p.idle()
	if idle < 2*c.cfg.HandlerTimeout {
		c.health.Clear(part)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, durable.Timeout)
	defer cancel()
	found, err := f.durable.Find(ctx, f.name)
	if found == nil || err != nil {
		return // whoever pulls next is told
	}
	if n := found.NumPending; n > 0 {
		c.health.Set(part, fmt.Errorf("%w from stream %s for %v: %d events are pending, and all %d places are taken by events that do not end",
			errStarved, f.stream, idle.Round(time.Second), n, f.share))
	}
}

// Pulls and acknowledgements have no answer by which a denial could be told. The
// server says it on the connection, once for each message.

func (c *Consumer) pullSubject(f *feed) string {
	return c.bus.APIPrefix() + "CONSUMER.MSG.NEXT." + f.stream + "." + f.name
}

// denied takes the next denial. It returns an error when nothing can be pulled;
// a denied acknowledgement only makes the consumer unhealthy.
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

// isAck reports whether a subject is that of an acknowledgement of one of the
// durable's deliveries: $JS.ACK.EVENTS.payment.1.2.3.4.5, newer servers put a
// domain and an account before the stream.
func isAck(subject, stream, durable string) bool {
	return strings.HasPrefix(subject, ackRoot) && strings.Contains(subject, "."+stream+"."+durable+".")
}

const ackRoot = "$JS.ACK."

// ackDenied names the grant rather than one delivery.
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

// puller counts what the open pulls still owe us.
type puller struct {
	statuses chan *nats.Msg
	mu       sync.Mutex
	owed     int
	last     time.Time // when the server was last heard
	ended    time.Time // when the last open pull ended
}

func (p *puller) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed
}

// idle is for how long no pull has been open.
func (p *puller) idle() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed > 0 || p.ended.IsZero() {
		return 0
	}
	return time.Since(p.ended)
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

// delivered takes one message off what is owed. One that was written off
// already (its pull was lost with a connection) goes over the budget.
func (p *puller) delivered(b *budget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		b.overdraw()
		return
	}
	if p.owed--; p.owed == 0 {
		p.ended = time.Now()
	}
}

func (p *puller) silent(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed > 0 && time.Since(p.last) > d
}

// forget writes off all open pulls.
func (p *puller) forget(b *budget) { p.writeOff(b, -1) }

func (p *puller) writeOff(b *budget, n int) {
	p.mu.Lock()
	if n < 0 || n > p.owed {
		n = p.owed
	}
	if p.owed -= n; p.owed == 0 && n > 0 {
		p.ended = time.Now()
	}
	p.mu.Unlock()
	b.release(n)
}

// status digests a message about a pull rather than from the stream (ADR-13,
// ADR-37 of NATS). It returns an error when the durable has to be bound again.
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
	case code == "408", code == "404": // expired, or nothing there
		return nil
	case code == "409" && text != "Consumer Deleted" && text != "Consumer is push based":
		return nil // leadership change, server shutdown, batch completed: ask again
	}
	return fmt.Errorf("%w: %s %s", errUnbound, code, text)
}
