package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/farandole/farandole/dedup"
)

// How long a delivery that is given back stays away.
const (
	busyRetry    = time.Second            // at most, while another worker has it
	suspectRetry = 250 * time.Millisecond // while another suspect of a crash runs
	stuckRetry   = time.Second            // while a handler of its key ignores its cancellation
	parkRetry    = 6 * time.Second        // while dead letters cannot be stored
	staleRetry   = 25 * time.Millisecond  // while others keep changing the state it needs; doubled each time
	closedRetry  = time.Second            // on average, while ledger or stream do not answer
)

// ack has the server forget the delivery: the event has come to its end.
func (c *Consumer) ack(d *delivery, o outcome) result {
	c.collect(d)
	if err := d.ack(); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("ack not sent, the redelivery will be acknowledged")
	}
	return result{outcome: o}
}

// handled is an ack of an event that has taken effect. If it was a replay, its letters
// go: the server gets that before the ack, so a letter stays only if the event is
// delivered again, which removes it. Nothing waits for the answer.
func (c *Consumer) handled(d *delivery, o outcome) result {
	if d.redrive.Replay > 0 {
		names := c.bus.Names()
		purge := fmt.Sprintf(`{"filter":%q}`, names.DeadLetterFilter(c.cfg.Name, "", d.key))
		if err := c.bus.Conn().Publish(c.bus.APIPrefix()+"STREAM.PURGE."+names.DLQStream(), []byte(purge)); err != nil {
			c.eventLog(d, c.log.Warn()).Err(err).Msg("letter not removed, the next replay of it does that")
		}
	}
	return c.ack(d, o)
}

// term is an ack with a reason, which the server tells those who listen to its advisories.
func (c *Consumer) term(d *delivery, o outcome, reason string) result {
	c.collect(d)
	if err := d.term(reason); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("term not sent, the redelivery will be ended")
	}
	return result{outcome: o}
}

// giveBack has the server deliver the message again after a delay.
func (c *Consumer) giveBack(d *delivery, o outcome, delay time.Duration) result {
	if err := d.nak(delay); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("nak not sent, the event waits for its ack wait")
		delay = c.cfg.Lease
	}
	return result{outcome: o, again: max(delay, time.Millisecond)}
}

// outrun ends the journey of a worker that was overtaken. The event is another
// worker's, and the message must not be settled from here. But if the other has
// brought the event to its end, this copy is a duplicate.
func (c *Consumer) outrun(d *delivery, err error) (end result, over bool) {
	switch {
	case errors.Is(err, dedup.ErrSettled):
		return c.ack(d, duplicate), true
	case errors.Is(err, dedup.ErrLeaseLost):
		c.eventLog(d, c.log.Warn()).Err(err).Msg("lease lost, left to its new owner")
		end = result{outcome: lost, again: c.cfg.Lease}
		if d.partition != nil {
			end.again = 0 // it does not come by this way again
		}
		return end, true
	}
	return result{}, false
}

// headerOrigin is where the server says from which stream it took a message:
// "TIMERS 7 <filters> <transforms> due.events.order.deadline.v1.ord-1 ...".
const headerOrigin = "Nats-Stream-Source"

// collect removes what the stream of timers has kept of a delivery that came from
// there: the server leaves a copy on its due subject. Nothing waits for the
// answer. A copy that stays takes room, nothing else.
func (c *Consumer) collect(d *delivery) {
	origin := d.msg.Header[headerOrigin]
	if len(origin) == 0 {
		return
	}
	part := strings.Split(origin[0], " ")
	if len(part) < 5 || part[0] != c.bus.Names().TimersStream() {
		return
	}
	sequence, err := strconv.ParseUint(part[1], 10, 64)
	if err != nil {
		return
	}
	purge := fmt.Sprintf(`{"filter":%q,"seq":%d}`, part[4], sequence+1) // what is below seq
	if err := c.bus.Conn().Publish(c.bus.APIPrefix()+"STREAM.PURGE."+part[0], []byte(purge)); err != nil {
		c.eventLog(d, c.log.Debug()).Err(err).Msg("copy of a timer's event not purged")
	}
}

// settle sends a settlement of a delivery, as in "+ACK". It is not confirmed: if it
// gets lost, the message is delivered again and the ledger knows the answer. Only
// while acknowledgements are denied it is, which tells when they are granted.
//
//nolint:contextcheck,nolintlint // nobody waits for a settlement, so no caller has to hand its context on
func (c *Consumer) settle(subject, verb string) error {
	if !c.health.Has(partAcks) {
		return c.bus.Conn().Publish(subject, []byte(verb))
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	err := c.bus.Ask(ctx, subject, func(ctx context.Context) error {
		_, err := c.bus.Conn().RequestWithContext(ctx, subject, []byte(verb))
		return err
	})
	if err == nil {
		c.health.Clear(partAcks)
	}
	return err
}

// confirmTimeout is how long the server has to confirm a settlement.
const confirmTimeout = time.Second
