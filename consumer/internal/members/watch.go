package members

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// settleAfter is how long the list has to rest before it counts, so that members
	// who come and go together are one change. settleWithin is when it counts anyway.
	settleAfter  = 250 * time.Millisecond
	settleWithin = time.Second
	// heartbeat is how often the server shows that it has the watch.
	heartbeat = time.Second
	// forgotten is when the server forgets the watch of a member that has died.
	forgotten = 30 * time.Second
)

var (
	errDeaf = errors.New("the bucket does not tell of this member's renewals")
	errGap  = errors.New("a message was lost on the way")
)

// watch follows the members' keys, from what is stored on. It belongs to one goroutine.
type watch struct {
	g        *Group
	messages jetstream.MessagesContext
	received uint64

	// Until all that was stored is here.
	reading bool
	read    roster
	left    map[string]bool

	unsettled changes
}

// changes are those that do not count yet; zero without any.
type changes struct{ first, last time.Time }

func (c *changes) add(now time.Time) {
	c.last = now
	if c.first.IsZero() {
		c.first = now
	}
}

// due is when they count, zero without any.
func (c *changes) due() time.Time {
	rested, latest := c.last.Add(settleAfter), c.first.Add(settleWithin)
	switch {
	case c.first.IsZero():
		return time.Time{}
	case latest.Before(rested):
		return latest
	}
	return rested
}

// watch follows the members until ctx ends or something fails.
func (g *Group) watch(ctx context.Context) (err error) {
	select {
	case <-g.announced: // so that nobody is in the list of others without having them in its own
	case <-ctx.Done():
		return ctx.Err()
	}
	b := g.cfg.Bus
	if err := g.checkBucket(ctx); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, refused := b.Guard(ctx, "CONSUMER.MSG.NEXT."+stream(b))
	defer func() {
		if err = refused(err); errors.Is(context.Cause(ctx), errDeaf) {
			err = errDeaf
		}
	}()
	consumer, err := g.consumer(ctx)
	if err != nil {
		return err
	}
	defer g.forget(ctx, consumer)
	messages, err := consumer.Messages(jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	defer messages.Stop()
	g.listen(end)
	w := &watch{g: g, messages: messages, reading: true, read: roster{entries: map[string]entry{}}, left: map[string]bool{}}
	if consumer.CachedInfo().NumPending == 0 {
		w.complete()
	}
	return w.follow(ctx)
}

// checkBucket looks whether the bucket is what it has to be.
func (g *Group) checkBucket(ctx context.Context) error {
	s, err := g.cfg.Bus.Stream(ctx, stream(g.cfg.Bus))
	if err != nil {
		return err
	}
	if age := s.CachedInfo().Config.MaxAge; age != lifetime {
		return fmt.Errorf("stream %s has max_age %v, want %v: remove it and run `farandole topology apply`", s.CachedInfo().Config.Name, age, lifetime)
	}
	return nil
}

// consumer makes the watch at the server. A watch or an ordered consumer of the
// client library would stay deaf when the stream is made anew: it waits for a
// sequence that is far away.
func (g *Group) consumer(ctx context.Context) (c jetstream.Consumer, err error) {
	b := g.cfg.Bus
	name := "members-" + g.cfg.ID + "-" + rand.Text()
	err = b.Ask(ctx, "CONSUMER.CREATE."+stream(b)+"."+name, func(ctx context.Context) (err error) {
		c, err = b.JetStream().CreateConsumer(ctx, stream(b), jetstream.ConsumerConfig{
			Name:              name,
			FilterSubject:     keysOf(b, g.cfg.Consumer) + "*",
			DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
			AckPolicy:         jetstream.AckNonePolicy,
			MemoryStorage:     true,
			Replicas:          1,
			InactiveThreshold: forgotten,
		})
		return err
	})
	return c, err
}

// forget makes the server forget the watch.
func (g *Group) forget(ctx context.Context, c jetstream.Consumer) {
	if g.cfg.Bus.Health() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	info := c.CachedInfo()
	if err := g.cfg.Bus.JetStream().DeleteConsumer(ctx, info.Stream, info.Name); err != nil {
		return // then it does so after forgotten
	}
}

// follow takes messages until ctx ends or one is missing.
func (w *watch) follow(ctx context.Context) error {
	for {
		m, err := w.next(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			w.settle()
			continue
		case err != nil:
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if w.received++; meta.Sequence.Consumer != w.received {
			return errGap // nothing is acknowledged, so it does not come again
		}
		switch changed := w.take(m, meta.Timestamp); {
		case w.reading && meta.NumPending == 0:
			w.complete()
		case changed && !w.reading:
			w.unsettled.add(time.Now())
		}
	}
}

// next waits for a message, or with context.DeadlineExceeded until the changes count.
func (w *watch) next(ctx context.Context) (jetstream.Msg, error) {
	if due := w.unsettled.due(); !due.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, due)
		defer cancel()
		ctx = bounded
	}
	return w.messages.Next(jetstream.NextContext(ctx))
}

// take takes note of one key, and reports whether that changes the balance.
func (w *watch) take(m jetstream.Msg, at time.Time) (changed bool) {
	g := w.g
	id := m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:]
	// A key whose time is over only shows how late it is: see the roster.
	expired := m.Headers().Get(jetstream.MarkerReasonHeader) != ""
	deleted := m.Headers().Get("KV-Operation") != ""
	g.mu.Lock()
	defer g.mu.Unlock()
	r := &g.roster
	if w.reading {
		r = &w.read
		r.now = at
	} else {
		r.pass(at)
	}
	switch {
	case id == g.cfg.ID:
		g.heard(expired || deleted)
	case expired:
	case deleted && w.reading:
		w.left[id] = true
	case deleted:
		changed = r.remove(id)
	default:
		changed = r.renew(read(id, m.Data()))
	}
	return r.expire() || changed
}

// complete takes over what was stored. The first list counts at once: a member
// alone has nobody to wait for.
func (w *watch) complete() {
	g := w.g
	g.mu.Lock()
	changed := g.roster.merge(w.read, w.left)
	g.mu.Unlock()
	w.reading, w.read, w.left = false, roster{}, nil
	g.mend(partWatch)
	switch {
	case !g.View().Known:
		w.settle()
	case changed:
		w.unsettled.add(time.Now())
	}
}

// settle makes what is known count.
func (w *watch) settle() {
	w.unsettled = changes{}
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	w.g.settle()
}
