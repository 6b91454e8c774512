package members

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

const (
	renewEvery = time.Second
	// renewWithin bounds one renewal, so that another one fits into a lifetime.
	renewWithin = 2 * time.Second
	// deafAfter is how many renewals the watch may miss.
	deafAfter = 3
	// leaveWithin bounds what is done at the end. What is not done then comes to its
	// end at the server a little later.
	leaveWithin = time.Second
)

// phase is where a Group's life is.
type phase int

const (
	idle phase = iota
	running
	ended
)

// begin lets this member's key be written.
func (g *Group) begin() {
	g.writing <- struct{}{}
	g.phase = running
	<-g.writing
}

// quit deletes this member's key, and lets nobody write it again.
func (g *Group) quit(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	g.writing <- struct{}{}
	defer func() { <-g.writing }()
	g.phase = ended
	if err := g.send(ctx, nats.Header{"KV-Operation": {"DEL"}}, nil); err != nil {
		g.log.Info().Err(err).Stringer("after", lifetime).Msg("ended, and could not tell the other members, who find it out later")
	}
}

// renew renews this member's key until ctx ends or something fails.
func (g *Group) renew(ctx context.Context) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, renewWithin)
		err := g.write(bounded)
		cancel()
		if err != nil {
			return err
		}
		g.mend(partRenew)
		g.renewed()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-g.overdue:
		case <-time.After(renewEvery):
		}
	}
}

// write writes this member's key while Run runs. One write follows another, so
// that none takes back what a later one says.
func (g *Group) write(ctx context.Context) error {
	select {
	case g.writing <- struct{}{}:
		defer func() { <-g.writing }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", bus.ErrUnavailable, context.Cause(ctx))
	}
	if g.phase != running {
		return nil
	}
	data, err := json.Marshal(g.me())
	if err != nil {
		return err
	}
	return g.send(ctx, nats.Header{}, data)
}

func (g *Group) send(ctx context.Context, header nats.Header, data []byte) error {
	b := g.cfg.Bus
	subject := b.PutSubject(b.Names().Bucket(event.MembersBucket), string(g.cfg.Consumer)+"."+g.cfg.ID)
	pending, err := b.Send(ctx, &nats.Msg{Subject: subject, Header: header, Data: data})
	if err != nil {
		return err
	}
	_, err = pending.Wait(ctx)
	return err
}

// renewed takes note that the own key is stored. A watch that misses it again and
// again is begun anew: whatever the reason is, it would miss others, too.
func (g *Group) renewed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.announced:
	default:
		close(g.announced)
	}
	if g.unheard++; g.unheard > deafAfter {
		g.rewatch(errDeaf)
	}
}

// heard takes note that the watch has told of the own key, which may be gone
// because this process slept. The caller holds g.mu.
func (g *Group) heard(gone bool) {
	g.unheard = 0
	if !gone {
		return
	}
	select {
	case g.overdue <- struct{}{}:
	default:
	}
}

// listen takes note of a watch that begins; end ends it.
func (g *Group) listen(end context.CancelCauseFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unheard, g.rewatch = 0, end
}
