package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/outbox"
)

// source is a durable consumer to pull from.
type source struct {
	stream     string
	durable    string
	filters    []string
	own        bool    // subjects are Farandole's own
	share      int     // at most so many deliveries pulled ahead
	budget     *budget // what they take their places from
	catchingUp bool    // not the consumer's durable but the one that catches up
}

const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 2 * time.Second // the server says so often that an idle pull is alive
	bindTimeout   = 5 * time.Second
	bindRetry     = 500 * time.Millisecond
)

// sources are what this consumer pulls from: the event stream; with From, the
// foreign stream and the event stream for redrives only.
func (c *Consumer) sources() []source {
	n := c.bus.Names()
	events := source{
		stream: n.EventsStream(), durable: string(c.cfg.Name), own: true, share: c.cfg.InFlight, budget: c.budget,
		filters: []string{n.RedriveFilter(c.cfg.Name)},
	}
	if from := c.cfg.From; from != nil {
		events.share, events.budget = c.cfg.forRedrives(), c.redrives
		return []source{events, {
			stream: from.Stream, durable: events.durable, filters: from.Subjects, share: c.cfg.InFlight - events.share, budget: c.budget,
		}}
	}
	for _, t := range c.registry.types {
		events.filters = append(events.filters, n.TypeFilter(t))
	}
	return []source{events}
}

// retryHorizon is the longest a failed event can take to its last attempt.
func (c *Consumer) retryHorizon() time.Duration {
	return time.Duration(c.cfg.Retry.MaxAttempts-1)*c.cfg.Retry.MaxDelay + c.cfg.Lease
}

// prepare checks what must hold before the first event: the streams are there
// and keep a message longer than its retries, and the ledger keeps its marks
// longer than that.
func (c *Consumer) prepare(ctx context.Context) error {
	var errs []error
	for _, s := range c.sources() {
		stream, err := c.bus.Stream(ctx, s.stream)
		if err != nil {
			errs = append(errs, c.noSource(s, err))
			continue
		}
		if age := stream.CachedInfo().Config.MaxAge; age > 0 && age < c.retryHorizon() {
			errs = append(errs, fmt.Errorf("%w: %s: stream %s drops messages after %v, retries take up to %v: raise its max age or lower Retry",
				ErrConfig, c.cfg.Name, s.stream, age, c.retryHorizon()))
		}
		c.tellRetention(stream.CachedInfo().Config)
		if err := c.bind(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	if p, ok := c.ledger.(preparer); ok {
		err := p.Prepare(ctx, c.retryHorizon())
		switch {
		case errors.Is(err, dedup.ErrConfig), errors.Is(err, dedup.ErrNoBucket), errors.Is(err, dedup.ErrNoStream):
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrConfig, c.cfg.Name, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("consumer: %s: %w", c.cfg.Name, err))
		}
	}
	if wrong := slices.DeleteFunc(slices.Clone(errs), passes); len(wrong) > 0 {
		errs = wrong // waiting mends the others only
	}
	return errors.Join(errs...)
}

// passes reports whether what stands against a start may pass by itself. Tables
// that are missing, too, leave events unharmed as an outage does, but do not come.
func passes(err error) bool { return bus.IsOutage(err) && !errors.Is(err, outbox.ErrSchema) }

// noSource says what to do about a stream that cannot be consumed from.
func (c *Consumer) noSource(s source, err error) error {
	switch {
	case !errors.Is(err, bus.ErrNoStream):
		return fmt.Errorf("consumer: %s: %w", c.cfg.Name, err)
	case s.own:
		return fmt.Errorf("consumer: %s: %w: create it with `farandole topology apply`, or check the prefix %q", c.cfg.Name, err, c.bus.Names().Prefix)
	}
	return fmt.Errorf("consumer: %s: %w: create it, or correct From", c.cfg.Name, err)
}

// preparer is a ledger that can check at start whether it can keep its promise
// for as long as an event may be retried.
type preparer interface {
	Prepare(ctx context.Context, horizon time.Duration) error
}

// pull feeds deliveries of one source until ctx ends. It keeps one
// subscription and asks for as many messages as this process has room for, so
// that everything the server has handed out is in flight here, under the
// heartbeat, and a stop gives back all of it.
func (c *Consumer) pull(ctx, work context.Context, s source) {
	part := "pull " + s.durable + " of " + s.stream
	reconnected := c.bus.Conn().StatusChanged(nats.CONNECTED)
	defer c.bus.Conn().RemoveStatusListener(reconnected)
	freed := s.budget.watch()
	for ctx.Err() == nil {
		err := c.pullBound(ctx, work, s, part, reconnected, freed)
		if s.catchingUp && err != nil {
			return // whoever tends the durable looks what there is
		}
		for err != nil && ctx.Err() == nil { // the durable is gone, or its stream
			c.health.set(part, err)
			c.log.Error().Err(err).Str("stream", s.stream).Msg("not consuming, will bind again")
			select {
			case <-ctx.Done():
			case <-time.After(bindRetry):
				err = c.bind(ctx, s)
			}
		}
	}
}

// pullBound pulls from the durable until ctx ends (nil) or the durable does
// not answer any more.
func (c *Consumer) pullBound(ctx, work context.Context, s source, part string, reconnected <-chan nats.Status, freed <-chan struct{}) error {
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
		p.delivered(s.budget)
		c.health.clear(part)
		c.dispatch(work, m, s)
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
		p.forget(s.budget)
	}()

	tick := time.NewTicker(pullHeartbeat)
	defer tick.Stop()
	for {
		if err := c.request(p, s, inbox); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-freed:
		case <-denials.Ready():
			if err := c.denied(denials, s, inbox); err != nil {
				return err
			}
		case <-reconnected:
			p.forget(s.budget) // the server forgot the pulls with the connection
		case <-tick.C:
			c.watchPulls(ctx, p, s)
			if p.silent(2 * pullHeartbeat) {
				p.forget(s.budget)
				if s.catchingUp {
					return errUnbound
				}
				if err := c.bind(ctx, s); err != nil {
					return err
				}
			}
		case m, ok := <-p.statuses:
			if !ok {
				return fmt.Errorf("%w: subscription closed", errUnbound)
			}
			if err := p.status(m, s.budget); err != nil {
				return err
			}
			c.health.clear(part)
		}
	}
}

// request asks for what there is room for: anything when no pull is open, and
// a worthwhile number when one is.
func (c *Consumer) request(p *puller, s source, inbox string) error {
	open := p.open()
	least := 1
	if open > 0 {
		least = max(1, s.share/8)
	}
	n := s.budget.reserve(least, s.share-open)
	if n == 0 {
		return nil
	}
	body, err := json.Marshal(pullRequest{Batch: n, Expires: pullExpires, Heartbeat: pullHeartbeat})
	if err != nil {
		return fmt.Errorf("consumer: %s: pull request: %w", c.cfg.Name, err)
	}
	p.asked(n)
	if err := c.bus.Conn().PublishRequest(c.pullSubject(s), inbox, body); err != nil {
		return fmt.Errorf("consumer: %s: pull: %w", c.cfg.Name, err)
	}
	return nil
}

// watchPulls turns the consumer unhealthy while something is pending on a
// source and nobody pulls: all its places are taken, by events that do not end.
func (c *Consumer) watchPulls(ctx context.Context, p *puller, s source) {
	part, idle := "places "+s.durable+" of "+s.stream, p.idle()
	if idle < 2*c.cfg.HandlerTimeout {
		c.health.clear(part)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	durable, err := c.lookUp(ctx, s.stream, s.durable)
	if durable == nil || err != nil {
		return // whoever pulls next is told
	}
	if n := durable.NumPending; n > 0 {
		c.health.set(part, fmt.Errorf("%w from stream %s for %v: %d events are pending, and all %d places are taken by events that do not end",
			errStarved, s.stream, idle.Round(time.Second), n, s.share))
	}
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
