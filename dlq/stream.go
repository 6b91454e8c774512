package dlq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Stream is the store of the letters in a system's dead-letter stream. It is
// safe for concurrent use, also by several processes.
type Stream struct {
	bus   *bus.Bus
	names event.Names
	marks Marks

	mu sync.Mutex
	// handle is what the server said of the stream last, nil before it was asked.
	handle jetstream.Stream
	// events is what it said of the event stream since.
	events jetstream.Stream
}

var _ Store = (*Stream)(nil)

// NewStream returns the letters of b's system. marks is the ledger of the
// consumers, nil if none can be asked. It does not talk to the server.
func NewStream(b *bus.Bus, marks Marks) *Stream {
	return &Stream{bus: b, names: b.Names(), marks: marks}
}

// knownStream returns the stream as the server described it last. So a letter that
// a scan has found is read with one request.
func (s *Stream) knownStream(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	stream := s.handle
	s.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	return s.askForStream(ctx)
}

func (s *Stream) askForStream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.bus.Stream(ctx, s.names.DLQStream())
	if err != nil {
		return nil, s.wrap("look", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle, s.events = stream, nil
	return stream, nil
}

// partitions is into how many partitions the event stream puts keys, 0 for none. It
// is asked once for all that a scan finds.
func (s *Stream) partitions(ctx context.Context) (int, error) {
	s.mu.Lock()
	stream := s.events
	s.mu.Unlock()
	if stream == nil {
		var err error
		if stream, err = s.bus.Stream(ctx, s.names.EventsStream()); err != nil {
			return 0, s.wrap("look for partitions", err)
		}
		s.mu.Lock()
		s.events = stream
		s.mu.Unlock()
	}
	return bus.Partitions(stream.CachedInfo().Config), nil
}

// Get returns the case of an event, see [Queue.Get].
func (s *Stream) Get(ctx context.Context, id string) (Case, error) {
	c := Case{ID: id}
	l, err := s.find(ctx, id)
	switch {
	case err == nil:
		r := l.record()
		c.ID, c.Letter = l.entry.ID, &r
	case !errors.Is(err, ErrNotFound):
		return Case{}, err
	}
	consumer, key, err := parseID(c.ID)
	if err != nil {
		return Case{}, err
	}
	mark, known, err := s.mark(ctx, consumer, key)
	if err != nil {
		return Case{}, err
	}
	if known {
		c.Mark = &mark
	}
	if c.Letter == nil && c.Mark == nil {
		return Case{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if c.Letter != nil {
		if err := s.follower().look(ctx, &c.Letter.Entry); err != nil {
			return Case{}, err
		}
	}
	c.Verdict = c.verdict()
	waits := c.Letter != nil && c.Letter.Replay != nil && c.Letter.Replay.State == ReplayWaiting
	if !waits && (!known || !mark.underWay()) {
		return c, nil
	}
	taken, err := s.durableTakes(ctx, consumer, s.names.RedriveFilter(consumer))
	if err != nil {
		return Case{}, err
	}
	if !taken {
		c.Verdict += fmt.Sprintf("; no consumer %s exists: start it, and the event goes on", consumer)
	}
	return c, nil
}

func (c Case) verdict() string {
	m := c.Mark
	if c.Letter != nil && c.Letter.Replay != nil {
		return c.Letter.Progress()
	}
	if m == nil {
		return "dead-lettered; the ledger keeps no mark of it, so a replay must be forced"
	}
	var sb strings.Builder
	by := "the original delivery"
	if m.Replay > 0 {
		by = fmt.Sprintf("replay %d", m.Replay)
	}
	at := m.At.UTC().Format(time.RFC3339)
	switch {
	case m.State == StateDone:
		fmt.Fprintf(&sb, "handled by %s at %s", by, at)
	case m.State == StateDiscarded:
		fmt.Fprintf(&sb, "discarded at %s", at)
	case m.underWay():
		fmt.Fprintf(&sb, "in progress (%s, %s since %s)", by, m.State, at)
	case c.Letter == nil:
		fmt.Fprintf(&sb, "parked by %s at %s, but its letter has been removed", by, at)
	default:
		fmt.Fprintf(&sb, "parked by %s at %s", by, at)
	}
	if m.First != nil && c.Letter == nil { // the letter tells it, too
		fmt.Fprintf(&sb, "; first failure %s: %s: %s", m.First.At.UTC().Format(time.RFC3339), m.First.Class, m.First.Error)
	}
	return sb.String()
}

// find reads the newest letter of an id, or of the only one that begins with a short id.
// Errors match ErrNotFound, ErrAmbiguous or ErrSelection.
func (s *Stream) find(ctx context.Context, id string) (*letter, error) {
	consumer, key, err := parseID(id)
	if err != nil {
		return nil, err
	}
	v, err := s.view(ctx, s.names.DeadLetterFilter(consumer, "", key))
	if err == nil && len(v.newest) == 0 && shortPattern.MatchString(string(key)) {
		if v, err = s.view(ctx, consumerSubject(s.names, consumer)); err == nil {
			maps.DeleteFunc(v.newest, func(full, _ string) bool { return !strings.HasPrefix(keyOfID(full), string(key)) })
		}
	}
	if err != nil {
		return nil, err
	}
	switch len(v.newest) {
	case 0:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	case 1:
	default:
		return nil, Ambiguous(id, sortedKeys(v.newest))
	}
	for _, subject := range v.newest {
		m, err := s.bus.Read(ctx, v.stream, subject)
		if err != nil {
			return nil, s.wrap("read "+subject, err)
		}
		if m == nil { // removed since
			break
		}
		l := s.letterOf(m)
		l.older = v.older[l.entry.ID]
		return l, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
}

// keyOfID is the event key of an ID.
func keyOfID(id string) string { return id[strings.LastIndexByte(id, '.')+1:] }

// keyPattern is what event keys look like, shortPattern how they begin. Other tools may
// store other letters.
var (
	keyPattern   = regexp.MustCompile(`^[a-z2-7]{32}$`)
	shortPattern = regexp.MustCompile(`^[a-z2-7]{1,31}$`)
)

// mark asks the ledger, which knows nothing of names that no consumer writes.
func (s *Stream) mark(ctx context.Context, c event.Consumer, k event.EventKey) (Mark, bool, error) {
	if legal := c.Validate() == nil && keyPattern.MatchString(string(k)); !legal || s.marks == nil {
		return Mark{}, false, nil
	}
	m, known, err := s.marks.Mark(ctx, c, k)
	if err != nil {
		return Mark{}, false, fmt.Errorf("dlq: ask the ledger for %s: %w", entryID(c, k), err)
	}
	return m, known, nil
}

// read fetches one letter by its sequence.
func (s *Stream) read(ctx context.Context, sequence uint64) (*letter, error) {
	stream, err := s.knownStream(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.bus.ReadAt(ctx, stream, sequence)
	switch {
	case err != nil:
		return nil, s.wrap("read letter "+strconv.FormatUint(sequence, 10), err)
	case m == nil:
		return nil, fmt.Errorf("dlq: read letter %d: %w", sequence, ErrNotFound)
	}
	return s.letterOf(m), nil
}

func (s *Stream) letterOf(m *jetstream.RawStreamMsg) *letter {
	return &letter{
		entry:   parseEntry(s.names, m.Subject, m.Sequence, m.Time, m.Header, len(m.Data)),
		subject: m.Subject,
		header:  m.Header,
		data:    m.Data,
	}
}

// wrap says what the server's answer means and what to do about it.
func (s *Stream) wrap(doing string, err error) error {
	switch {
	case errors.Is(err, bus.ErrNoStream):
		return fmt.Errorf("dlq: %s: %w; \"farandole topology apply\" creates it", doing, err)
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return fmt.Errorf("dlq: %s: %w", doing, ErrNotFound)
	}
	return fmt.Errorf("dlq: %s: %w", doing, err)
}
