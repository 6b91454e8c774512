package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
)

// Redrive is what a replayed message carries beside the original.
type Redrive struct {
	// Replay counts the replays of this event for this consumer, from 1.
	Replay int
	// Key is the event key that the dead letter had. It is empty when the
	// header did not fit beside a message of the server's maximum size; it is
	// the decoded event's own key then ([bus.EventKeyOf]).
	Key bus.EventKey
}

// RedriveOf reads it from a message's headers; ok is false for an original
// delivery. It does not look at the subject: headers of a message that did not
// come by the consumer's redrive subject ([bus.Names.IsRedrive]) prove nothing.
func RedriveOf(h nats.Header) (r Redrive, ok bool) {
	r.Replay = number(h, headerReplay)
	if r.Replay < 1 {
		return Redrive{}, false
	}
	if key := first(h, headerEventKey); isToken(key) {
		r.Key = bus.EventKey(key)
	}
	return r, true
}

// redriveMessage makes the message that replays a letter: the original data
// and headers, and what the next letter must know if it fails again.
func redriveMessage(n bus.Names, l *letter, replay int, maxPayload int64) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: redriveSubject(n, l),
		Header:  originals(l.header),
		Data:    l.data,
	}
	p, err := newPacker(m, maxPayload)
	if err != nil {
		return nil, err
	}
	if !p.put(headerReplay, strconv.Itoa(replay)) {
		return nil, fmt.Errorf("%w: no room for the %s header; raise the server's max_payload", bus.ErrTooLarge, headerReplay)
	}
	if !p.put(headerEventKey, string(l.entry.EventKey)) {
		if e, err := bus.Decode(m.Header, m.Data); err != nil || bus.EventKeyOf(e) != l.entry.EventKey {
			return nil, fmt.Errorf("%w: no room for the %s header; raise the server's max_payload", bus.ErrTooLarge, headerEventKey)
		}
	}
	p.put(nats.MsgIdHdr, redriveID(l.entry))
	for _, name := range []string{
		headerSubject, headerStream, headerSequence, headerStored,
		headerFirstFailure, headerFirstClass, headerFirstError,
	} {
		p.put(name, first(l.header, name))
	}
	for _, name := range sortedKeys(l.header) {
		if hasPrefixFold(name, prefixOriginal) {
			for _, value := range l.header[name] {
				p.put(name, value)
			}
		}
	}
	p.putAttempts(headerAttempts, parseAttempts(first(l.header, headerAttempts)))
	return m, nil
}

// redriveSubject is where the consumer takes replays from. A letter without its
// original subject (no room, or damaged) gets one that its consumer filters all the same.
func redriveSubject(n bus.Names, l *letter) string {
	consumer := l.entry.Consumer
	if subject := l.entry.Origin.Subject; isSubject(subject) {
		return n.RedriveSubject(consumer, subject)
	}
	if e, err := bus.Decode(l.header, l.data); err == nil {
		if t, err := n.TypeOf(e.Type()); err == nil {
			return n.RedriveSubject(consumer, n.EventSubject(t, bus.PartitionKey(e)))
		}
	}
	return n.RedriveSubject(consumer, n.Root("events.unknown."+string(l.entry.EventKey)))
}

// redriveID is the message id of a replay. It must differ from the event key,
// which the server may still remember; be the same when an interrupted replay
// is run again, and another one when the event has come back since.
func redriveID(e Entry) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", e.ID, e.Sequence))
	return "replay-" + hex.EncodeToString(sum[:10])
}
