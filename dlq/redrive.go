package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Redrive is what a message carries, beside the original, that comes again for one
// consumer only: a replay, or a deferred retry ([Deferral]).
type Redrive struct {
	// Replay counts the replays of this event for this consumer; 0 while it
	// has not been replayed.
	Replay int
	// Key is the event key that the event was handled under. It is empty when
	// the header did not fit beside a message of the server's maximum size; it
	// is the decoded event's own key then ([event.EventKeyOf]).
	Key event.EventKey
	// Stored is when the original message was stored, by the server's clock;
	// zero when there was no room for it.
	Stored time.Time
}

// RedriveOf reads it from a message's headers; ok is false for an original
// delivery. It does not look at the subject: headers of a message that did not
// come by the consumer's redrive subject ([event.Names.IsRedrive]) prove nothing.
func RedriveOf(h nats.Header) (r Redrive, ok bool) {
	replay, err := strconv.Atoi(first(h, headerReplay))
	if err != nil || replay < 0 {
		return Redrive{}, false
	}
	r = Redrive{Replay: replay, Stored: instant(h, headerStored)}
	if key := first(h, headerEventKey); isToken(key) {
		r.Key = event.EventKey(key)
	}
	return r, true
}

// Deferral makes the message that brings a failed one back to its consumer at
// due, and to no other. The server keeps it in the stream of timers on
// timer.<consumer>.retry.<event key>, and at due, by its own clock, puts it on the
// consumer's redrive subject. Data and headers are the original's, as in a replay;
// so are its origin, its history and its replay number. Of s only consumer and
// event key are used: the ledger has the rest. A deferral of the same event
// replaces the one before.
//
// maxPayload is the server's max_payload in bytes, 0 for no limit. The error
// matches [bus.ErrTooLarge] when the original leaves no room for what the server
// has to know.
func Deferral(n event.Names, failed *nats.Msg, from Origin, s Story, due time.Time, maxPayload int64) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: n.TimerSubject(s.Consumer, TimerRetry, event.Key(s.Key)),
		Header:  originals(failed.Header),
		Data:    failed.Data,
	}
	past := pastOf(n, failed, from, Story{Consumer: s.Consumer})
	p, err := newPacker(m, maxPayload)
	for _, h := range []struct{ name, value string }{
		{jetstream.ScheduleHeader, event.ScheduleAt(due)},
		{jetstream.ScheduleTargetHeader, n.DueSubject(n.RedriveSubject(s.Consumer, failed.Subject))},
	} {
		if err == nil {
			err = p.must(h.name, h.value)
		}
	}
	if err == nil {
		err = p.identify(past.replays, s.Key)
	}
	if err != nil {
		return nil, fmt.Errorf("dlq: defer %s: %w", m.Subject, err)
	}
	p.putPast(past)
	return m, nil
}

// TimerRetry is the name of the timers that deferred retries wait on.
const TimerRetry = "retry"

// redriveMessage makes the message that replays a letter: the original data
// and headers, and what the next letter must know if it fails again.
func redriveMessage(n event.Names, l *letter, replay, partitions int, maxPayload int64) (*nats.Msg, error) {
	m := &nats.Msg{
		Subject: redriveSubject(n, l, partitions),
		Header:  originals(l.header),
		Data:    l.data,
	}
	p, err := newPacker(m, maxPayload)
	if err == nil {
		err = p.identify(replay, l.entry.EventKey)
	}
	if err != nil {
		return nil, err
	}
	p.put(nats.MsgIdHdr, redriveID(l.entry))
	p.putPast(carriedPast(l.header))
	return m, nil
}

// must adds a header that the message is worthless without.
func (p *packer) must(name, value string) error {
	if !p.put(name, value) {
		return fmt.Errorf("%w: no room for the %s header; raise the server's max_payload", bus.ErrTooLarge, name)
	}
	return nil
}

// identify adds what says which event a redrive brings, and which replay of it
// this is. The key may be missing where the event itself tells it.
func (p *packer) identify(replay int, key event.EventKey) error {
	if err := p.must(headerReplay, strconv.Itoa(replay)); err != nil {
		return err
	}
	err := p.must(headerEventKey, string(key))
	if err != nil {
		if e, undecodable := event.Decode(p.msg.Header, p.msg.Data); undecodable == nil && event.EventKeyOf(e) == key {
			return nil
		}
	}
	return err
}

// putPast adds where a message came from and how it failed, as far as it fits.
func (p *packer) putPast(past past) {
	p.put(headerSubject, encode(past.subject))
	p.put(headerStream, encode(past.stream))
	p.put(headerSequence, past.sequence)
	p.put(headerStored, past.stored)
	p.put(headerFirstFailure, past.firstAt)
	p.put(headerFirstClass, past.firstClass)
	p.putText(headerFirstError, past.firstError)
	for _, name := range sortedKeys(past.renamed) {
		for _, value := range past.renamed[name] {
			p.put(name, value)
		}
	}
	p.put(headerCount, formatCount(past.letters))
	p.putChanges(past.changes)
	p.putAttempts(headerAttempts, past.attempts)
}

// redriveSubject is where the consumer takes replays from, in a stream of so many
// partitions, 0 for none. The event may be from a time when these were others. A
// letter without its original subject (no room, or damaged) gets one that its
// consumer filters all the same.
func redriveSubject(n event.Names, l *letter, partitions int) string {
	subject := l.entry.Origin.Subject
	if !isSubject(subject) {
		subject = n.EventSubject("unknown.unknown.v1", event.Key(l.entry.EventKey))
		if e, err := event.Decode(l.header, l.data); err == nil {
			if t, err := n.TypeOf(e.Type()); err == nil {
				subject = n.EventSubject(t, event.PartitionKey(e))
			}
		}
	}
	return n.RedriveSubject(l.entry.Consumer, n.Stored(subject, partitions))
}

// redriveID is the message id of a replay, replay-<dlq-count>-<hash>. It must
// differ from the event key, which the server may still remember; be the same
// when an interrupted replay is run again, and another one when the event has
// come back since. Sequences and counts come again in a stream made anew; the
// time when a letter was stored does not.
func redriveID(e Entry) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", e.ID, e.Sequence, e.Stored.UnixNano()))
	return fmt.Sprintf("replay-%d-%s", e.Count, hex.EncodeToString(sum[:10]))
}
