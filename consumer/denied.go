package consumer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
)

// Pulls and acknowledgements have no answer by which a denial could be told:
// the server says it on the connection, once for each message.

// acknowledging is the part of the health that a denied acknowledgement is.
const acknowledging = "acknowledge"

func (c *Consumer) pullSubject(s source) string {
	return c.bus.APIPrefix() + "CONSUMER.MSG.NEXT." + s.stream + "." + s.durable
}

// denied takes the next denial. It returns an error when nothing can be pulled;
// a denied acknowledgement only makes the consumer unhealthy.
func (c *Consumer) denied(denials *bus.Denials, s source, inbox string) error {
	subject, err := denials.Next()
	switch {
	case err == nil: // the bus was closed
	case subject == c.pullSubject(s):
		return fmt.Errorf("consumer: %s: pull: %w", c.cfg.Name, err)
	case subject == inbox:
		return fmt.Errorf("consumer: %s: deliveries: %w", c.cfg.Name, err)
	case isAck(subject, s.stream, s.durable):
		c.health.set(acknowledging, ackDenied(subject, s.stream, s.durable, err))
	}
	return nil
}

// isAck reports whether a subject is that of an acknowledgement of one of the
// durable's deliveries: $JS.ACK.EVENTS.payment.1.2.3.4.5, newer servers put a
// domain and an account before the stream.
func isAck(subject, stream, durable string) bool {
	return strings.HasPrefix(subject, ackRoot) && strings.Contains(subject, "."+stream+"."+durable+".")
}

const ackRoot = "$JS.ACK."

// ackDenied names the grant rather than one delivery.
func ackDenied(subject, stream, durable string, err error) error {
	before, _, _ := strings.Cut(subject, "."+stream+"."+durable+".")
	return fmt.Errorf("%w (for all deliveries: %s.%s.%s.>)", err, before, stream, durable)
}

// settle sends a settlement of a delivery. While acknowledgements are denied it
// has the settlement confirmed, which tells when they are granted.
func (c *Consumer) settle(subject, verb string) error {
	if !c.health.has(acknowledging) {
		return c.bus.Conn().Publish(subject, []byte(verb))
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	err := c.bus.Ask(ctx, subject, func(ctx context.Context) error {
		_, err := c.bus.Conn().RequestWithContext(ctx, subject, []byte(verb))
		return err
	})
	if err == nil {
		c.health.clear(acknowledging)
	}
	return err
}

// confirmTimeout is how long the server has to confirm a settlement.
const confirmTimeout = time.Second
