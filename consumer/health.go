package consumer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// minFade is long enough for what is still wrong to be reported again: every
// retry and every check comes sooner.
const minFade = 30 * time.Second

// health collects what keeps the consumer from making progress, by part. What
// is not reported again fades: the event that met the trouble may have gone to
// another replica, and then nothing would clear it here.
type health struct {
	fade time.Duration
	sick atomic.Bool // so that clear costs nothing while all is well
	mu   sync.Mutex
	by   map[string]ailment
}

// ailment is what was wrong with a part, and when last.
type ailment struct {
	err error
	at  time.Time
}

func (h *health) set(part string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[string]ailment{}
	}
	h.by[part] = ailment{err: err, at: time.Now()}
	h.sick.Store(true)
}

func (h *health) clear(part string) {
	if !h.sick.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, part)
	h.sick.Store(len(h.by) > 0)
}

// has reports whether something is wrong with a part.
func (h *health) has(part string) bool {
	if !h.sick.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, sick := h.by[part]
	return sick
}

func (h *health) err(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, part := range slices.Sorted(maps.Keys(h.by)) {
		if a := h.by[part]; now.Sub(a.at) < h.fade {
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrUnhealthy, part, a.err))
		}
	}
	return errors.Join(errs...)
}
