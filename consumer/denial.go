package consumer

import (
	"fmt"
	"strings"

	"github.com/farandole/farandole/bus"
)

// The server does not answer a denied pull or acknowledgement. It reports the denial
// on the connection, once for each message.

// denied handles the next denial. It returns an error if pulls or deliveries are
// denied. A denied acknowledgement only makes the consumer unhealthy.
func (c *Consumer) denied(denials *bus.Denials, f *feed, inbox string) error {
	subject, err := denials.Next()
	switch {
	case err == nil: // the bus was closed
	case subject == c.pullSubject(f):
		return fmt.Errorf("consumer: %s: pull: %w", c.cfg.Name, err)
	case subject == inbox:
		return fmt.Errorf("consumer: %s: deliveries: %w", c.cfg.Name, err)
	case isAck(subject, f.stream, f.name):
		c.health.Set(partAcks, ackDenied(subject, f.stream, f.name, err))
	}
	return nil
}

// isAck reports whether the subject acknowledges a delivery of the durable, as in
// $JS.ACK.EVENTS.payment.1.2.3.4.5. Newer servers put a domain and an account
// before the stream.
func isAck(subject, stream, durable string) bool {
	return strings.HasPrefix(subject, ackRoot) && strings.Contains(subject, "."+stream+"."+durable+".")
}

const ackRoot = "$JS.ACK."

// ackDenied names the subject that has to be granted, $JS.ACK.EVENTS.payment.>,
// besides the one that was denied.
func ackDenied(subject, stream, durable string, err error) error {
	before, _, _ := strings.Cut(subject, "."+stream+"."+durable+".")
	return fmt.Errorf("%w (for all deliveries: %s.%s.%s.>)", err, before, stream, durable)
}
