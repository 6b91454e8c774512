package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// Log keys.
const (
	keyEventID     = "event_id"
	keyEventType   = "event_type"
	keyEventKey    = "event_key"
	keyConsumer    = "consumer"
	keyAttempt     = "attempt"
	keyCorrelation = "correlation_id"
	keySubject     = "subject"
)

// decode reads the event and names it: by source and id, else by where the
// message is stored, which is the same at every redelivery. An event that does
// not agree with its subject is not named by what it says: the name may be that
// of another event, which would be marked as parked with it.
// Whether it has expired is the server's clock to say.
func (c *Consumer) decode(ctx context.Context, d *delivery) (event.Event, error) {
	e, err := event.Decode(d.msg.Header, d.msg.Data)
	if err == nil && c.cfg.From == nil { // the subjects of foreign streams are their own affair, in redrives too
		err = c.bus.Names().CheckSubject(d.msg.Subject, e)
	}
	if err != nil {
		d.key = d.redrive.Key
		if d.key == "" {
			d.key = event.EventKeyAt(d.stream, d.sequence, d.stored)
		}
		return event.Event{}, withOutcome(undecodable, err, 0)
	}
	d.key, d.eventType = event.EventKeyOf(e), e.Type()
	at, ok := event.Expiry(e)
	if !ok {
		return e, nil
	}
	now, err := c.now(ctx)
	if err == nil && now.After(at) {
		err = withOutcome(expired, fmt.Errorf("%w at %s", errExpired, at.Format(time.RFC3339)), 0)
	}
	return e, err
}

func (d *delivery) request(cfg Config) dedup.Request {
	return dedup.Request{Consumer: cfg.Name, Key: d.key, Replay: d.redrive.Replay, Redelivered: d.redelivered, Lease: cfg.Lease}
}

// begun is when the event was first stored, by the server's clock: neither a
// retry nor a replay makes it younger.
func (d *delivery) begun() time.Time {
	if !d.redrive.Stored.IsZero() {
		return d.redrive.Stored
	}
	return d.stored
}

func (d *delivery) origin() dlq.Origin {
	return dlq.Origin{Stream: d.stream, Sequence: d.sequence, Time: d.stored}
}

// ran is what a handler that has returned leaves behind.
type ran struct {
	Step
	reads *state.Reads // the documents it has read
	late  error        // why it was cancelled, if it succeeded nevertheless
}

// handle runs the handler under its timeout, with the heartbeat on the claim.
func (c *Consumer) handle(ctx context.Context, d *delivery, claim *dedup.Claim, e event.Event) (r ran, err error) {
	tracked, reads := state.Track(ctx)
	hctx, cancel := context.WithCancelCause(tracked)
	defer cancel(nil)
	hctx, stop := context.WithTimeoutCause(hctx, c.cfg.HandlerTimeout, ErrTimeout)
	defer stop()
	start := time.Now()
	d.hold(claim, cancel, start.Add(c.cfg.HandlerTimeout))
	returned := false
	defer func() {
		d.drop()
		if !returned {
			c.goOn(ctx, d, claim)
		}
	}()
	r.reads = reads
	r.Step, err = c.registry.Invoke(hctx, c.bus.Names(), e)
	returned = true
	c.metrics.observe(time.Since(start))
	cause := context.Cause(hctx)
	switch {
	case err == nil:
		r.late = cause
	case cause != nil && !isFinal(err) && !errors.Is(err, Skip):
		// The handler's error is what its cancellation did to it: say why it was cancelled.
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return r, err
}

// goOn ends the journey of an event whose handler has ended this goroutine
// (runtime.Goexit), in another one, which then does what else this one would have.
func (c *Consumer) goOn(ctx context.Context, d *delivery, claim *dedup.Claim) {
	c.running.Go(func() {
		c.runLane(ctx, c.over(d, c.fail(ctx, d, claim, ErrGoexit)))
	})
}

// isFinal reports whether a handler chose the event's end itself.
func isFinal(err error) bool {
	wish := wishOf(err)
	return wish != nil && wish.outcome != retryAfter
}

// wishOf is what a handler said is to become of the event, nil if nothing.
func wishOf(err error) (wish *outcomeError) {
	errors.As(err, &wish)
	return wish
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// eventLog names the event. Its attributes are logged as they came, percent-
// encoded; a structured or undecodable message has none in its headers.
func (c *Consumer) eventLog(d *delivery, l *zerolog.Event) *zerolog.Event {
	for key, header := range map[string]string{keyEventID: "ce-id", keyEventType: "ce-type", keyCorrelation: "ce-" + event.ExtCorrelation} {
		if v := d.msg.Header[header]; len(v) > 0 {
			l = l.Str(key, v[0])
		}
	}
	return l.Str(keyEventKey, string(d.key)).Str(keySubject, d.msg.Subject).Uint64("sequence", d.sequence)
}
