package outbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// The parts of a relay that may be in trouble. Besides them every event type is one.
const (
	partClaim  = "claim rows"
	partSettle = "mark rows"
	partClean  = "clean up"
)

const (
	// forgetAfter is how long trouble counts that does not come again: another relay
	// may have taken the rows that met it.
	forgetAfter = time.Minute
	// maxTroubles bounds what is remembered: the subjects of rows may be anything.
	maxTroubles = 64
	// slowClaim is how long a claim may take before it counts as trouble.
	slowClaim = 2 * time.Second
)

// health collects what keeps rows from going out.
type health struct {
	mu       sync.Mutex
	troubles map[string]trouble // by part
	claiming time.Time          // when the claim under way began; zero for none
}

type trouble struct {
	err error
	at  time.Time // when it was last met
}

// set notes trouble, and reports whether it is new.
func (h *health) set(part string, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.troubles[part]
	if known || len(h.troubles) < maxTroubles {
		if h.troubles == nil {
			h.troubles = map[string]trouble{}
		}
		h.troubles[part] = trouble{err, time.Now()}
	}
	return !known
}

func (h *health) clear(part string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.troubles, part)
}

// claim notes when a claim has begun, or, with the zero time, that it has ended.
func (h *health) claim(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claiming = since
}

func (h *health) err(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	if d := now.Sub(h.claiming); !h.claiming.IsZero() && d > slowClaim {
		errs = append(errs, fmt.Errorf("outbox: relay: %s: %w: it has not answered for %s", partClaim, ErrDatabase, d.Round(time.Second)))
	}
	for _, part := range slices.Sorted(maps.Keys(h.troubles)) {
		if t := h.troubles[part]; now.Sub(t.at) < forgetAfter {
			errs = append(errs, fmt.Errorf("outbox: relay: %s: %w", part, t.err))
		} else {
			delete(h.troubles, part)
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

// Health returns nil, or why rows are not going out. The error matches those of the
// bus ([bus.ErrUnavailable], [bus.ErrNoStream], [bus.ErrDenied] and so on) or
// [ErrDatabase]. Rows that the server refuses, or that are parked, do not count: see
// [Outbox.Stats].
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
