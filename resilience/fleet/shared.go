package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/pauses"
)

// follow keeps up with what is shared until ctx ends.
func (f *Breaker) follow(ctx context.Context) {
	f.store.Follow(ctx, f.cfg.Consumer, func(d pauses.Document) {
		f.learn(d.Breakers[f.name])
		f.signal() // it stops at once, and then finds out for how long
		f.measure(ctx)
		f.signal()
	}, func(err error) {
		f.mu.Lock()
		f.known, f.stale = true, true
		if unusable(err) {
			f.warn(err)
		}
		f.mu.Unlock()
		f.signal()
	})
}

// unusable says that there is no bucket for this process, as opposed to one that does
// not answer now.
func unusable(err error) bool {
	return errors.Is(err, bus.ErrNoStream) || errors.Is(err, bus.ErrDenied)
}

// warn says once that this process has the breaker for itself. The caller holds f.mu.
func (f *Breaker) warn(err error) {
	if !f.warned {
		f.log.Warn().Err(err).Msg("the breaker cannot be shared: this process has it for itself")
	}
	f.warned = true
}

// learn takes note of what is shared.
func (f *Breaker) learn(b pauses.Breaker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mute = time.Time{}
	if !f.known || f.stale || b.Term > f.shared.Term {
		f.known, f.stale = true, false
		if b.Term > 0 || f.shared.State == "" {
			f.untold = false
			f.adopt(b)
		}
	}
}

// adopt makes what is shared count. The caller holds f.mu.
func (f *Breaker) adopt(b pauses.Breaker) {
	news := f.shared.State != "" || b.State == pauses.Open // to a process that has just started a closed breaker is none
	if b.Forced && news && !b.At.Equal(f.shared.At) {
		f.log.Warn().Str("state", string(b.State)).Str("by", b.By).Str("why", b.Why).Msg("breaker of the consumer set by an operator")
	}
	f.timed = f.timed && f.shared.Until.Equal(b.Until)
	f.shared = b
}

// measure finds out how long the state lasts, by the server's clock.
func (f *Breaker) measure(ctx context.Context) {
	f.mu.Lock()
	until, timed := f.shared.Until, f.timed || f.shared.Until.IsZero()
	f.mu.Unlock()
	if timed {
		return
	}
	now, err := f.store.Now(ctx)
	if err != nil {
		return // nothing counts as over until it is known
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared.Until.Equal(until) {
		f.until, f.timed = time.Now().Add(until.Sub(now)), true
	}
}

// share changes what is shared. change gets it as it is stored, and the server's time; it
// returns false to leave it. What is stored in the end counts for this process, too.
// Without a bucket change gets what this process has, and its own time.
func (f *Breaker) share(ctx context.Context, change func(b *pauses.Breaker, now time.Time) bool) error {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	f.mu.Lock()
	own, alone := f.shared, time.Now().Before(f.mute)
	f.mu.Unlock()
	var before, after pauses.Breaker
	var now time.Time
	wrote, err := false, error(nil)
	if !alone {
		if now, err = f.store.Now(ctx); err == nil {
			_, err = f.store.Update(ctx, f.cfg.Consumer, func(d *pauses.Document) bool {
				if before = d.Breakers[f.name]; before.Term < own.Term {
					before = own // the bucket is new, or could not be written to for a while
				}
				after = before
				if wrote = change(&after, now); !wrote {
					return false
				}
				after.Term++
				d.SetBreaker(f.name, after)
				return true
			})
		}
	}
	f.mu.Lock()
	switch {
	case alone, err != nil && unusable(err):
		if err != nil {
			f.warn(err)
			f.mute = time.Now().Add(backoff.Around(muteFor))
		}
		alone, f.stale = true, true // what the others agree on counts as soon as it is heard
		now, before, after = time.Now(), f.shared, f.shared
		if wrote = change(&after, now); wrote {
			after.Term++
		}
	case err != nil:
		f.mu.Unlock()
		f.log.Debug().Err(err).Msg("breaker's change not shared yet")
		return err
	}
	f.untold = alone && (wrote || f.untold)
	if wrote && !alone {
		f.again()
	}
	if wrote || after.Term > f.shared.Term {
		f.adopt(after)
		f.until, f.timed = time.Now().Add(after.Until.Sub(now)), true
	}
	f.mu.Unlock()
	if wrote && before.State != after.State && before.State != "" {
		f.tell(ctx, after, !alone)
	}
	return nil
}

// overdue says that what this process has is not shared, and may be by now.
func (f *Breaker) overdue() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.untold && !time.Now().Before(f.mute)
}

// shareOwn shares what this process has, unless the others have agreed on something since.
func (f *Breaker) shareOwn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	f.mu.Lock()
	own, left := f.shared, time.Until(f.until)
	f.mu.Unlock()
	own.Term++
	now, err := f.store.Now(ctx)
	if err == nil {
		own.At = now.UTC() // its own times were by its own clock
		if !own.Until.IsZero() {
			own.Until = now.Add(left).UTC()
		}
		_, err = f.store.Update(ctx, f.cfg.Consumer, func(d *pauses.Document) bool {
			if stored := d.Breakers[f.name]; stored.Term >= own.Term {
				own = stored
				return false
			}
			d.SetBreaker(f.name, own)
			return true
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil && unusable(err):
		f.mute = time.Now().Add(backoff.Around(muteFor))
		return nil
	case err != nil:
		return err
	case f.untold: // else it has heard of the others meanwhile
		f.untold = false
		f.adopt(own)
		f.until, f.timed = time.Now().Add(own.Until.Sub(now)), true
	}
	f.again()
	return nil
}

// again says once that the breaker is shared again. The caller holds f.mu.
func (f *Breaker) again() {
	if f.warned {
		f.log.Info().Msg("the breaker is shared again")
	}
	f.warned = false
}

// tell logs a change that this process has made, and publishes it as an event.
func (f *Breaker) tell(ctx context.Context, b pauses.Breaker, shared bool) {
	line := f.log.Info()
	if b.State == pauses.Open {
		line = f.log.Warn()
	}
	if !b.Until.IsZero() {
		line = line.Time("until", b.Until)
	}
	alone := ""
	if !shared {
		alone = f.id
	}
	line.Str("state", string(b.State)).Str("by", b.By).Str("why", b.Why).Bool("shared", shared).
		Msg("breaker of the consumer has changed its state")
	if err := publish(ctx, f.bus, f.cfg.Consumer, f.name, b, alone); err != nil {
		f.log.Warn().Err(err).Msg("the breaker's change is not told on the bus")
	}
}
