package outbox

import (
	"errors"
	"fmt"
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
	// slowClaim is how long a claim may take before it counts as trouble.
	slowClaim = 2 * time.Second
)

// trouble notes what is wrong with a part, and logs it if it is new.
func (r *Relay) trouble(part string, err error) {
	if r.health.Set(part, err) {
		r.log.Warn().Err(err).Str("part", part).Msg("outbox relay: trouble")
	}
}

// Health returns nil, or why rows are not going out. The error matches those of the
// bus ([bus.ErrUnavailable], [bus.ErrNoStream], [bus.ErrDenied] and so on) or
// [ErrDatabase]. Rows that the server refuses, or that are parked, do not count: see
// [Outbox.Stats].
func (r *Relay) Health() error {
	var errs []error
	if err := r.bus.Health(); err != nil {
		errs = append(errs, fmt.Errorf("outbox: relay: %w", err))
	}
	now := time.Now()
	if since := r.claiming.Load(); since != nil && now.Sub(*since) > slowClaim {
		errs = append(errs, fmt.Errorf("outbox: relay: %s: %w: it has not answered for %s", partClaim, ErrDatabase, now.Sub(*since).Round(time.Second)))
	}
	for _, err := range r.health.Errors(now) {
		errs = append(errs, fmt.Errorf("outbox: relay: %w", err))
	}
	if r.cfg.Feed != nil {
		errs = append(errs, r.cfg.Feed.Health())
	}
	return errors.Join(errs...)
}
