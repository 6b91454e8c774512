// Package health collects what keeps a long-running part of a program from its
// work, for its Health method.
package health

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxParts bounds what is remembered: others may choose the names of parts.
const maxParts = 64

// Troubles are what is wrong, by part, as in "publish". What is not reported
// again fades: the message that met the trouble may have gone to another
// process, and then nothing would clear it here. It is safe for concurrent use.
type Troubles struct {
	fade time.Duration
	any  atomic.Bool // so that Clear costs nothing while all is well

	mu     sync.Mutex
	byPart map[string]trouble
}

// trouble is what was wrong with a part, and when last.
type trouble struct {
	err error
	at  time.Time
}

// New returns one without troubles. fade is how long one lasts that is not
// reported again.
func New(fade time.Duration) *Troubles {
	return &Troubles{fade: fade, byPart: map[string]trouble{}}
}

// Set reports the trouble of a part, and returns whether it is new.
func (t *Troubles) Set(part string, err error) (isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	before, known := t.byPart[part]
	if !known && len(t.byPart) >= maxParts {
		maps.DeleteFunc(t.byPart, func(_ string, x trouble) bool { return now.Sub(x.at) >= t.fade })
	}
	if known || len(t.byPart) < maxParts {
		t.byPart[part] = trouble{err: err, at: now}
		t.any.Store(true)
	}
	return !known || now.Sub(before.at) >= t.fade
}

// Clear says that a part works.
func (t *Troubles) Clear(part string) {
	if !t.any.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byPart, part)
	t.any.Store(len(t.byPart) > 0)
}

// Has reports whether a part is in trouble, also in one that has faded.
func (t *Troubles) Has(part string) bool {
	if !t.any.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.byPart[part]
	return known
}

// Errors are the troubles that have not faded, as in "publish: bus: unavailable",
// in the order of the parts' names.
func (t *Troubles) Errors(now time.Time) (errs []error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, part := range slices.Sorted(maps.Keys(t.byPart)) {
		if x := t.byPart[part]; now.Sub(x.at) < t.fade {
			errs = append(errs, fmt.Errorf("%s: %w", part, x.err))
		}
	}
	return errs
}
