package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Store keeps marks for the [Rules] of a ledger in another package. A mark is
// bytes under a consumer and an event key. Its revision is never 0 and grows
// with each write. A mark whose lifetime is over is not there.
type Store interface {
	// ReadMark returns a mark and when it was written, by the store's clock;
	// revision 0 when there is none.
	ReadMark(ctx context.Context, c event.Consumer, k event.EventKey) (mark []byte, revision uint64, written time.Time, err error)
	// WriteMark replaces a mark and returns its new revision. An error that
	// matches [bus.ErrConflict] says that the mark is not at the revision w.After,
	// one that matches [bus.ErrBusy] that others were in the way: nothing was
	// written then, and doing it again is safe.
	WriteMark(ctx context.Context, w Write) (revision uint64, err error)
	// Now is the clock that stamps marks.
	Now(ctx context.Context) (time.Time, error)
}

// Write is one change of a mark.
type Write struct {
	Consumer event.Consumer
	Key      event.EventKey
	// Claim is the claim whose mark this is. It is nil for a claim that is about
	// to be made, and for what people change.
	Claim *Claim
	After uint64 // the revision that the mark has; 0 for no mark
	Mark  []byte
	// Lifetime is how long the mark is kept; 0 is for ever.
	Lifetime time.Duration
	// Done says that the event has taken effect: the mark, Out and what the
	// handler has changed in the store become durable together.
	Done bool
	Out  []*nats.Msg // the outgoing messages
}

// Rules are the rules of claiming and settling, for a ledger whose [Store] is in
// another package: outbox.Ledger.
type Rules struct{ *engine }

// NewRules returns the rules over s, which keeps marks for retention, 0 for 24 h.
// With claims a worker claims an event before its handler runs. Dead letters, and
// messages that bring an event back later, are published on b. It does no I/O.
// The error matches [ErrConfig].
func NewRules(b *bus.Bus, s Store, retention time.Duration, claims bool, log zerolog.Logger) (*Rules, error) {
	retention, err := retentionOf(retention)
	if err != nil {
		return nil, err
	}
	e := newEngine(ruledStore{s, b, retention}, retention, time.Now, log)
	e.claimless, e.atomic = !claims, true
	return &Rules{e}, nil
}

// Prepare checks that marks can be read, and that the retention covers horizon,
// the longest time over which an event can be retried. Errors match [ErrConfig], or
// are the store's.
func (r *Rules) Prepare(ctx context.Context, horizon time.Duration) error {
	if err := checkHorizon(r.retention, horizon); err != nil {
		return err
	}
	if _, err := r.store.read(ctx, markKey("prepare", "0")); err != nil {
		return fmt.Errorf("dedup: prepare: %w", err)
	}
	return nil
}

// ruledStore makes a store of a [Store]: it knows how marks are written, and how
// long they are kept.
type ruledStore struct {
	Store
	bus       *bus.Bus
	retention time.Duration
}

func (s ruledStore) write(ctx context.Context, c *Claim, key string, after uint64, r record, out []*nats.Msg) (uint64, error) {
	data, err := r.encode(nil)
	if err != nil {
		return 0, err
	}
	w := Write{Claim: c, After: after, Mark: data, Lifetime: s.retention, Done: r.State == stateDone}
	w.Consumer, w.Key = splitKey(key)
	if r.kept() {
		w.Lifetime = 0
	}
	if w.Done {
		w.Out = out
		err = s.fit(out)
	} else {
		// A dead letter, or what brings the event back, comes before the mark: a
		// crash between the two leaves the event to be tried again.
		err = publish(ctx, s.bus, out)
	}
	if err != nil {
		return 0, err
	}
	revision, err := s.WriteMark(ctx, w)
	switch {
	case errors.Is(err, bus.ErrConflict):
		err = fmt.Errorf("%w: %w", errConflict, err)
	case w.Done && errors.Is(err, bus.ErrBusy):
		err = fmt.Errorf("%w: %w", ErrStale, err)
	}
	return revision, err
}

// fit refuses messages that could not be published later. The step is not done then.
func (s ruledStore) fit(out []*nats.Msg) error {
	for _, m := range out {
		if err := s.bus.Fit(m); err != nil {
			return err
		}
	}
	return nil
}

func (s ruledStore) read(ctx context.Context, key string) (entry, error) {
	consumer, k := splitKey(key)
	data, revision, written, err := s.ReadMark(ctx, consumer, k)
	if revision == 0 || err != nil {
		return entry{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return entry{}, err
	}
	return entry{revision: revision, record: r, created: written}, nil
}

func (s ruledStore) now(ctx context.Context) (time.Time, error) { return s.Now(ctx) }

// splitKey is the inverse of markKey.
func splitKey(key string) (event.Consumer, event.EventKey) {
	c, k, _ := strings.Cut(key, ".")
	return event.Consumer(c), event.EventKey(k)
}
