package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/durable"
	"github.com/farandole/farandole/event"
)

// Deletion retires a consumer: its place in the streams and all that waits for it alone
// are removed for good. Its documents stay, and so does what a ledger in a database
// remembers. A consumer of the name that is started later begins like a new one.
type Deletion struct {
	// Consumer is who goes. Required.
	Consumer event.Consumer
	// Stream is the one of others that it reads. Defaults to none.
	Stream string
}

// Remains is what a deletion gives up.
type Remains struct {
	// Durables are its places at the server.
	Durables []string `json:"durables"`
	// Pending are events that are stored for it and have not ended.
	Pending int `json:"pending"`
	// Remembered are the marks of events that it has handled: without them a copy of
	// one, or the event itself to a consumer that begins anew, would take effect again.
	Remembered int `json:"remembered"`
	// Retries wait for their time, Timers are others that it has set.
	Retries int `json:"retries"`
	Timers  int `json:"timers"`
	// Letters are its dead letters, those that are being replayed included.
	Letters int `json:"dead_letters"`
	// Documents are its state, which stays.
	Documents int `json:"documents"`
}

// Plan says what Apply would give up, and changes nothing. Errors match
// [event.ErrInvalidConsumer], [ErrNoDurable] if nothing of the consumer is there,
// [ErrRunning] while a process is seen to run it, or are those of [List].
func (d Deletion) Plan(ctx context.Context, b *bus.Bus) (Remains, error) {
	r, _, err := d.plan(ctx, b)
	return r, err
}

func (d Deletion) plan(ctx context.Context, b *bus.Bus) (r Remains, s *surveyed, err error) {
	if err := d.Consumer.Validate(); err != nil {
		return r, nil, err
	}
	wrap := func(err error) error { return fmt.Errorf("consumer: delete %s: %w", d.Consumer, err) }
	if s, err = survey(ctx, b, d.Consumer); err != nil {
		return r, nil, wrap(err)
	}
	status, err := s.status(ctx, d.Consumer)
	if err != nil {
		return r, nil, wrap(err)
	}
	switch {
	case status.Workers > 0:
		held := ""
		if len(status.Paused) > 0 {
			held = ", paused by " + status.Paused[0].Reason
		}
		return r, nil, fmt.Errorf("%w: %s (processes: %d%s): stop them, then delete it", ErrRunning, d.Consumer, status.Workers, held)
	case errors.Is(s.unseen, bus.ErrDenied):
		return r, nil, wrap(fmt.Errorf("whether a process runs it: %w", s.unseen))
	case !status.Unattended && len(status.Paused) == 0 && len(status.Durables) > 0:
		return r, nil, fmt.Errorf("%w: %s, or was a moment ago: it holds events; if it is stopped, try again when its lease is over", ErrRunning, d.Consumer)
	}
	r.Pending, r.Durables = int(status.Lag), []string{} //nolint:gosec // a count
	for _, own := range status.Durables {
		r.Durables = append(r.Durables, own.Name)
	}
	if d.Stream != "" {
		foreign, err := durable.Look(ctx, b, d.Stream, string(d.Consumer))
		if err != nil {
			return r, nil, wrap(err)
		}
		if foreign != nil {
			r.Durables = append(r.Durables, d.Stream+" "+foreign.Name)
			r.Pending += int(foreign.NumPending) + foreign.NumAckPending //nolint:gosec // a count
		}
	}
	for _, p := range d.parts(b) {
		n, err := durable.CountPending(ctx, b, p.stream, jetstream.ConsumerConfig{FilterSubject: p.filter})
		if err != nil && !errors.Is(err, bus.ErrNoStream) {
			return r, nil, wrap(err)
		}
		*p.count(&r) += int(n) //nolint:gosec // a count
	}
	r.Timers -= min(r.Timers, r.Retries)
	if len(r.Durables) == 0 && !s.paged[d.Consumer] && r.Remembered+r.Retries+r.Timers+r.Letters == 0 {
		return r, nil, fmt.Errorf("%w %s on stream %s, and nothing that waits for it", ErrNoDurable, d.Consumer, b.Names().EventsStream())
	}
	return r, s, nil
}

// remainder is a part of what is kept of a consumer: what a filter selects.
type remainder struct {
	stream, filter string
	count          func(*Remains) *int
	stays          bool
}

func (d Deletion) parts(b *bus.Bus) []remainder {
	n := b.Names()
	events, timers, marks, paused := n.EventsStream(), n.TimersStream(), n.Bucket("dedup"), n.Bucket(event.PausesBucket)
	var unshown int
	return []remainder{
		{stream: n.DLQStream(), filter: n.DeadLetterFilter(d.Consumer, "", ""), count: func(r *Remains) *int { return &r.Letters }},
		{stream: timers, filter: n.TimersFilter(d.Consumer, "retry"), count: func(r *Remains) *int { return &r.Retries }},
		{stream: timers, filter: n.TimersFilter(d.Consumer, ""), count: func(r *Remains) *int { return &r.Timers }},
		{stream: events, filter: n.RedriveFilter(d.Consumer), count: func(*Remains) *int { return &unshown }},
		{stream: "KV_" + paused, filter: "$KV." + paused + "." + string(d.Consumer), count: func(*Remains) *int { return &unshown }},
		{stream: events, filter: n.StateFilter(d.Consumer), count: func(r *Remains) *int { return &r.Documents }, stays: true},
		{stream: "KV_" + marks, filter: "$KV." + marks + "." + string(d.Consumer) + ".>", count: func(r *Remains) *int { return &r.Remembered }},
		{stream: events, filter: n.Root("ledger." + string(d.Consumer) + ".>"), count: func(r *Remains) *int { return &r.Remembered }},
	}
}

// Apply removes it. After an error some of it may be gone; Apply again removes the
// rest. Errors are those of Plan.
func (d Deletion) Apply(ctx context.Context, b *bus.Bus) error {
	_, s, err := d.plan(ctx, b)
	if err != nil {
		return err
	}
	wrap := func(err error) error { return fmt.Errorf("consumer: delete %s: %w", d.Consumer, err) }
	if d.Stream != "" {
		if err := durable.Remove(ctx, b, d.Stream, string(d.Consumer)); err != nil {
			return wrap(err)
		}
	}
	for _, own := range s.durables[d.Consumer] {
		if err := durable.Remove(ctx, b, own.Stream, own.Name); err != nil {
			return wrap(err)
		}
	}
	for _, p := range d.parts(b) {
		if p.stays {
			continue
		}
		if err := purge(ctx, b, p); err != nil {
			return wrap(err)
		}
	}
	return nil
}

// purge removes what a filter selects. A stream that is not there has nothing of it.
func purge(ctx context.Context, b *bus.Bus, p remainder) error {
	stream, err := b.Stream(ctx, p.stream)
	if errors.Is(err, bus.ErrNoStream) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.Ask(ctx, "STREAM.PURGE."+p.stream, func(ctx context.Context) error {
		return stream.Purge(ctx, jetstream.WithPurgeSubject(p.filter))
	})
}
