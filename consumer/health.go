package consumer

import (
	"errors"
	"fmt"
	"time"
)

// What can be wrong with a consumer, as Health names it. What concerns one durable
// names it as well: "pull payment of EVENTS", "places payment of EVENTS" and
// "durable EVENTS".
const (
	partStart   = "start"       // why it has not begun
	partLedger  = "ledger"      // claims or releases fail
	partHandler = "handler"     // what the handlers stand on does not answer
	partPublish = "publish"     // steps cannot be stored
	partTimers  = "timers"      // nothing keeps timers
	partState   = "state"       // documents keep changing under the handlers, or are lost
	partLetters = "dlq"         // dead letters cannot be stored
	partRetries = "retries"     // events that wait fill MaxAckPending
	partMembers = "members"     // who else is there is not known
	partShare   = "partitions"  // partitions cannot be taken
	partAcks    = "acknowledge" // acknowledgements are denied
)

// Health returns nil while the consumer makes progress, else an error matching
// [ErrUnhealthy] that joins what is wrong. It turns nil again by itself.
func (c *Consumer) Health() error {
	if err := c.bus.Health(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnhealthy, err)
	}
	if err := c.ended.Load(); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrUnhealthy, errEnded), *err)
	}
	now := time.Now()
	errs := []error{c.inFlight.err(), c.unhandled.err(now)}
	if !c.begun.Load() {
		errs = append(errs, fmt.Errorf("%w: %w", ErrUnhealthy, errStarting))
	}
	for _, trouble := range c.health.Errors(now) {
		errs = append(errs, fmt.Errorf("%w: %w", ErrUnhealthy, trouble))
	}
	if err := c.ledger.Health(); err != nil {
		errs = append(errs, fmt.Errorf("%w: ledger: %w", ErrUnhealthy, err))
	}
	return errors.Join(errs...)
}

// watchRetries turns the consumer unhealthy while deliveries that wait for
// their retry use up what the server allows to be unacknowledged.
func (c *Consumer) watchRetries() {
	if len(c.feeds) == 0 {
		return // of partitions, the places bound what waits
	}
	window := c.feeds[0].durable.MaxAckPending()
	for _, f := range c.feeds {
		window = min(window, f.durable.MaxAckPending())
	}
	if n, strays := c.lanes.waits(), c.unhandled.size(); int64(n+strays) >= window && window > 0 {
		waits := fmt.Sprintf("%d events wait for their retry", n)
		if strays > 0 {
			waits += fmt.Sprintf(" and %d for a handler of their type", strays)
		}
		c.health.Set(partRetries, fmt.Errorf("%w: %s, MaxAckPending is %d: nothing else is delivered until one is due", errClogged, waits, window))
		return
	}
	c.health.Clear(partRetries)
}

// minFade is long enough for what is still wrong to be reported again: every
// retry and every check comes sooner.
const minFade = 30 * time.Second
