package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
)

// result is how the journey of a delivery has ended.
type result struct {
	outcome outcome
	// again is when a delivery that was given back comes again. It holds its key
	// until then. Zero if it does not come, or holds nothing.
	again time.Duration
}

// process is the journey of one event, from the server's delivery to its
// settlement. Each stage is in the file of its name: decode.go, claim.go,
// handle.go, complete.go, settle.go. What a crash after each does is tabulated in
// DESIGN.md, "Crash gaps".
//
// ctx ends when a shutdown's grace is over. That cancels the handler, never the
// record of what the handler did.
func (c *Consumer) process(ctx context.Context, d *delivery) result {
	lasting := context.WithoutCancel(ctx)

	if d.feed.dropped(d) {
		return c.term(d, dropped, "dropped by an operator")
	}
	if d.partition != nil && d.partition.closed() {
		return result{outcome: released} // its next owner handles it
	}
	e, err := c.decode(lasting, d) // 1. decode
	if err == nil && !c.handles(e) {
		return c.stray(d, e)
	}
	slot := c.slots.slot() // one of Concurrency, until the handler has returned
	if !slot.acquire(d.partition) {
		return c.giveBack(d, released, 0) // shutting down, or the partition is another's
	}
	defer slot.release()

	claim, end, over := c.claim(lasting, d) // 2. claim
	if over {
		return end
	}
	for runs := 1; ; runs++ {
		var r run
		if err == nil {
			r, err = c.handle(ctx, d, claim, e) // 3. handle
		}
		slot.release()
		var out []*nats.Msg
		if err == nil {
			out, err = c.seal(lasting, d, e, r)
		}
		if err != nil {
			stale := c.confirm(ctx, r, err)
			if stale == nil {
				return c.fail(ctx, d, claim, err)
			}
			err = stale
		} else {
			err = c.ledger.Complete(lasting, claim, out) // 4. complete
		}
		if errors.Is(err, dedup.ErrStale) && runs < maxRuns {
			if slot.again(d.partition) {
				err = nil
				d.told.end("stale", 0)
				continue // on the state that is there now
			}
		}
		if err != nil {
			return c.incomplete(ctx, d, claim, out, r.late, err)
		}
		c.passed(d, out)
		return c.handled(d, r.outcome()) // 5. ack
	}
}

// maxRuns is how often a handler runs in a row when others change its state each
// time. Then it makes room for other events.
const maxRuns = 16
