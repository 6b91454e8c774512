package bus

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
)

// A stream that knows a message id acknowledges another message of that id and
// stores nothing. Ids are for a whole stream and can be computed by anybody, so
// what is stored is looked at: it may be another event, which would suppress this one.

// SendExact is [Bus.Send] for a message whose data is the same each time it is
// sent: other data under its id is an error as well ([ErrIDTaken]). JSON may be
// written in another way.
func (b *Bus) SendExact(ctx context.Context, m *nats.Msg) (*Pending, error) {
	p, err := b.Send(ctx, m)
	if err != nil {
		return nil, err
	}
	p.exact = true
	return p, nil
}

// duplicated looks at what is stored in place of the message. Errors match
// [ErrIDTaken], [ErrUnavailable], [ErrDenied] or [ErrClosed].
func (p *Pending) duplicated(ctx context.Context) error {
	there, err := p.bus.ofLeader(ctx, p.ack.Stream, map[string]any{"seq": p.ack.Sequence})
	switch {
	case err != nil:
		return fmt.Errorf("its message id is known, of a message that cannot be compared: %w", err)
	case there == nil:
		return p.gone()
	}
	return p.compare(&nats.Msg{Subject: there.Subject, Header: there.Header, Data: there.Data})
}

// gone is for a message id that the stream remembers and whose message it does
// not hold any more. A timer may have fired, a letter may have been replayed. An
// event that is not there is published again when the stream has forgotten it.
func (p *Pending) gone() error {
	if !strings.HasPrefix(p.msg.Subject, p.bus.cfg.Names.Root("events.")) {
		return nil
	}
	return fmt.Errorf("%w: the stream remembers its message id, of %s %d, which is not there any more: it takes it again after its duplicate window",
		ErrUnavailable, p.ack.Stream, p.ack.Sequence)
}

// compare says how a stored message is another one than this.
func (p *Pending) compare(there *nats.Msg) error {
	mine, theirs := identify(p.msg), identify(there)
	published, stored := p.bus.cfg.Names.Published(mine.subject), p.bus.cfg.Names.Published(theirs.subject)
	same := mine.event == theirs.event && (published == stored || mine.event && mine.typ == theirs.typ && mine.key == theirs.key && folded(published, stored)) &&
		mine.source == theirs.source && mine.id == theirs.id
	switch {
	case !same:
		return fmt.Errorf("%w: %s %d has the message id %s: there %s, here %s", ErrIDTaken, p.ack.Stream, p.ack.Sequence,
			text.Quote(p.msg.Header.Get(nats.MsgIdHdr)), theirs, mine)
	case p.exact && (mine.media != theirs.media || !sameData(p.msg.Data, there.Data)):
		return fmt.Errorf("%w: %s %d has %s with other data: there %d bytes of %s, here %d bytes of %s", ErrIDTaken, p.ack.Stream, p.ack.Sequence,
			theirs, len(there.Data), text.Quote(theirs.media), len(p.msg.Data), text.Quote(mine.media))
	}
	return nil
}

// identified is what tells one message from another.
type identified struct {
	subject, source, id, typ, media string
	key                             event.Key
	event                           bool // it can be decoded, and has more than a subject
}

func identify(m *nats.Msg) identified {
	i := identified{subject: m.Subject}
	if e, err := event.Decode(m.Header, m.Data); err == nil {
		i.event, i.source, i.id, i.typ, i.media, i.key = true, e.Source(), e.ID(), e.Type(), e.DataContentType(), event.PartitionKey(e)
	}
	return i
}

func (i identified) String() string {
	if !i.event {
		return text.Quote(i.subject)
	}
	return fmt.Sprintf("%s from %s with id %s", text.Quote(i.subject), text.Quote(i.source), text.Quote(i.id))
}

// folded reports whether b can be a with its last token replaced: a stream that
// folds keys stores a number in its place.
func folded(a, b string) bool {
	i, j := strings.LastIndexByte(a, '.'), strings.LastIndexByte(b, '.')
	return i > 0 && j > 0 && a[:i] == b[:j] && strings.Trim(b[j+1:], "0123456789") == ""
}

// sameData reports whether two texts are the same, or the same JSON.
func sameData(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, err := event.ContentID(a)
	if err != nil {
		return false
	}
	y, err := event.ContentID(b)
	return err == nil && x == y
}
