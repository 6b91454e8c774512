package outbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Parts of a relay that may be in trouble, besides the kinds of subjects.
const (
	partClaim  = "claim rows"
	partSettle = "mark rows"
	partClean  = "clean up"
)

const (
	// fade is after how long trouble that did not come again is over: another
	// relay may have the rows that met it.
	fade = time.Minute
	// maxAilments bounds what is remembered: subjects may be anything.
	maxAilments = 64
	// slow is how long a claim may take before it is called trouble.
	slow = 2 * time.Second
)

// health collects what keeps rows from going out.
type health struct {
	mu       sync.Mutex
	ailing   map[string]ailment
	claiming time.Time // since when; zero when no claim is under way
}

type ailment struct {
	err error
	at  time.Time // when last
}

// set reports whether the trouble is new.
func (h *health) set(part string, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.ailing[part]
	if known || len(h.ailing) < maxAilments {
		if h.ailing == nil {
			h.ailing = map[string]ailment{}
		}
		h.ailing[part] = ailment{err, time.Now()}
	}
	return !known
}

func (h *health) clear(part string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ailing, part)
}

// claim says that a claim begins, or, with the zero time, that it has ended.
func (h *health) claim(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claiming = since
}

func (h *health) err(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	if d := now.Sub(h.claiming); !h.claiming.IsZero() && d > slow {
		errs = append(errs, fmt.Errorf("outbox: relay: %s: %w: it has not answered for %s", partClaim, ErrDatabase, d.Round(time.Second)))
	}
	for _, part := range slices.Sorted(maps.Keys(h.ailing)) {
		if a := h.ailing[part]; now.Sub(a.at) < fade {
			errs = append(errs, fmt.Errorf("outbox: relay: %s: %w", part, a.err))
		} else {
			delete(h.ailing, part)
		}
	}
	return errors.Join(errs...)
}

// trouble notes what is wrong with a part, and logs it if it is new.
func (r *Relay) trouble(part string, err error) {
	if r.health.set(part, err) {
		r.log.Warn().Err(err).Str("part", part).Msg("outbox relay: trouble")
	}
}

// Health returns nil, or why rows are not going out. Errors match those of the
// bus ([bus.ErrUnavailable], [bus.ErrNoStream], [bus.ErrDenied] and so on) or
// [ErrDatabase]. Rows that the server refuses, and parked ones, are no trouble of
// the relay's: see [Outbox.Stats].
func (r *Relay) Health() error {
	var nats error
	if err := r.bus.Health(); err != nil {
		nats = fmt.Errorf("outbox: relay: %w", err)
	}
	var feed error
	if r.cfg.Feed != nil {
		feed = r.cfg.Feed.Health()
	}
	return errors.Join(nats, r.health.err(time.Now()), feed)
}
