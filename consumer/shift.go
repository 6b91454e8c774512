package consumer

import (
	"context"
	"sync"
	"time"
)

// shift is the handlers that started at about the same time. They share a
// deadline, and so a timer: one for each event costs more than most handlers do.
type shift struct {
	ctx     context.Context //nolint:containedctx // of all handlers of the shift
	end     context.CancelFunc
	until   time.Time
	running int
}

// shifts give handlers their deadline: not before the timeout, and at most a 64th
// of it later.
type shifts struct {
	timeout time.Duration

	mu   sync.Mutex
	open *shift // the one that handlers join
}

// join adds a handler, whose context becomes a child of the shift's. All who join
// have the same parent.
func (x *shifts) join(parent context.Context, now time.Time) *shift {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil || now.Add(x.timeout).After(x.open.until) {
		if x.open != nil && x.open.running == 0 {
			x.open.end()
		}
		s := &shift{until: now.Add(x.timeout + x.timeout/64)}
		s.ctx, s.end = context.WithDeadlineCause(parent, s.until, ErrTimeout)
		x.open = s
	}
	x.open.running++
	return x.open
}

// leave takes a handler out that has returned.
func (x *shifts) leave(s *shift) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.running--; s.running == 0 && s != x.open {
		s.end()
	}
}
