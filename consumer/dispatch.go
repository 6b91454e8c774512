package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// dispatch takes a message from the server into its lane, and has it run if
// nothing of its key is before it.
func (c *Consumer) dispatch(work context.Context, m *nats.Msg, f *feed) {
	d, err := newDelivery(c, m, f)
	if err != nil {
		f.budget.release(1)
		c.log.Error().Err(err).Msg("delivery without metadata ignored")
		return
	}
	if d == nil { // of a partition that is not this process's, or handled already
		f.budget.release(1)
		return
	}
	c.admit(work, d)
}

// admit has a delivery run, or queue behind those of its key.
func (c *Consumer) admit(work context.Context, d *delivery) {
	c.inFlight.add(d)
	select {
	case <-c.stopped:
		c.finish(d, c.giveBack(d, released, 0))
		return
	default:
	}
	run, back := c.lanes.enter(d, time.Now())
	switch {
	case run:
		c.start(work, d)
	case back > 0:
		c.finish(d, c.giveBack(d, released, back))
	}
}

// start has a worker run d's lane: one that waits for work, because its stack has
// grown to what the journey needs, else a new one.
func (c *Consumer) start(work context.Context, d *delivery) {
	select {
	case c.idle <- d:
	default:
		c.running.Go(func() { c.worker(work, d) })
	}
}

// worker runs lanes until the consumer stops, or until enough others wait.
func (c *Consumer) worker(work context.Context, d *delivery) {
	for {
		c.runLane(work, d)
		if c.idlers.Add(1) > int64(c.cfg.Concurrency) {
			c.idlers.Add(-1)
			return
		}
		select {
		case d = <-c.idle:
			c.idlers.Add(-1)
		case <-c.stopped:
			return
		}
	}
}

// runLane processes d and what is queued behind it, one after another.
func (c *Consumer) runLane(work context.Context, d *delivery) {
	for d != nil {
		d = c.over(d, c.process(work, d))
	}
}

// over ends d's run and returns what of its key runs next, nil if nothing does.
func (c *Consumer) over(d *delivery, r result) (next *delivery) {
	c.suspects.leave(d)
	c.finish(d, r)
	next, back := c.lanes.leave(d, r.again, time.Now())
	for _, h := range back {
		c.finish(h.delivery, c.giveBack(h.delivery, released, h.delay))
	}
	return next
}

// finish ends this process's hold on a delivery.
func (c *Consumer) finish(d *delivery, r result) {
	c.calm(d, r)
	c.inFlight.remove(d)
	d.leavePlace()
	if d.partition != nil {
		d.partition.leave()
	}
	c.metrics.count(d, r.outcome)
	d.told.end(r.outcome.String(), r.again)
}
