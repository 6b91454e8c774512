package consumer

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// run is one run of a handler that has returned. The zero run is none.
type run struct {
	step    Step
	skipped bool         // the handler returned Skip
	reads   *state.Reads // the documents that it has read
	late    error        // why it was cancelled, if it succeeded nevertheless
}

func (r run) outcome() outcome {
	if r.skipped {
		return skipped
	}
	return handled
}

// handle runs the handler under its timeout, with the heartbeat on the claim.
func (c *Consumer) handle(ctx context.Context, d *delivery, claim *dedup.Claim, e event.Event) (r run, err error) {
	start := time.Now()
	shift := c.shifts.join(ctx, start)
	defer c.shifts.leave(shift)
	tracked, reads := state.Track(shift.ctx)
	if claim.Transaction != nil {
		tracked = claim.Transaction.Context(tracked)
	}
	d.told.begin(claim.Failures + 1)
	hctx, cancel := context.WithCancelCause(context.WithValue(tracked, deliveryKey{}, d))
	defer cancel(nil)
	d.beginRun(claim, cancel, shift.until)
	returned := false
	defer func() {
		d.endRun()
		if !returned {
			c.goOn(ctx, d, claim)
		}
	}()
	r.reads = reads
	r.step, err = c.registry.Invoke(hctx, c.bus.Names(), e) //nolint:contextcheck // that of the handlers of its shift
	returned = true
	c.metrics.observe(time.Since(start))
	cause := context.Cause(hctx) //nolint:contextcheck // likewise
	switch {
	case errors.Is(err, Skip):
		r.step, r.skipped, err = Step{}, true, nil
	case err == nil:
		r.late = cause
	case cause != nil && !isFinal(err):
		// The handler's error is what its cancellation did to it: say why it was cancelled.
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return r, err
}

// goOn ends the journey of an event whose handler has ended this goroutine
// (runtime.Goexit). It does so in another one, which then does what else this one
// would have done.
func (c *Consumer) goOn(ctx context.Context, d *delivery, claim *dedup.Claim) {
	c.running.Go(func() {
		c.runLane(ctx, c.over(d, c.fail(ctx, d, claim, ErrGoexit)))
	})
}

// contain turns a panic into an error, so that one event cannot take the
// process and every other event in it down.
func contain(ctx context.Context, h handler, e event.Event) (s Step, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{value: r, at: panickedAt()}
		}
	}()
	return h(ctx, e)
}

// panicError matches [ErrPanic] and, if the value was an error, that.
type panicError struct {
	value any
	at    string
}

func (p *panicError) Error() string {
	return fmt.Sprintf("%s: %s%s", ErrPanic.Error(), fmt.Sprint(p.value), p.at)
}

// panicFrames is how many callers a panic's text names.
const panicFrames = 6

// panickedAt lists who called whom when the panic came, a line each, without
// addresses: the same panic has the same text, and dead letters group by it.
func panickedAt() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var text strings.Builder
	for n := 0; n < panicFrames; {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "consumer.contain") {
			break // below it is the consumer, not the handler
		}
		if !strings.HasPrefix(f.Function, "runtime.") {
			fmt.Fprintf(&text, "\n  at %s (%s:%d)", path.Base(f.Function), filepath.Base(f.File), f.Line)
			n++
		}
		if !more {
			break
		}
	}
	return text.String()
}

func (p *panicError) Unwrap() []error {
	if err, ok := p.value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}
