package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
)

// payment is the consumer whose dependency has a breaker.
const payment = "payment"

// Witness watches the marks of payment during a run. A mark forgets its attempts when the
// event has taken effect, but for the first one: who reads them afterwards alone does not
// see all.
type Witness struct {
	mu   sync.Mutex
	seen map[attemptKey]Attempt
}

// attemptKey tells attempts apart. An attempt is in each mark that follows it.
type attemptKey struct {
	event string
	at    time.Time
}

// Run watches the system to which b is connected until ctx ends. It is called once.
func (w *Witness) Run(ctx context.Context, b *bus.Bus) error {
	var reading sync.WaitGroup
	defer reading.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, o := range marks(b) {
		reading.Go(func() {
			if err := follow.Read(ctx, b, o, w.note); !errors.Is(err, ctx.Err()) {
				cancel(fmt.Errorf("audit: watch marks: %w", err))
			}
		})
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Testify adds what the witness has seen.
func (w *Witness) Testify(e *Evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range e.Attempts {
		delete(w.seen, attemptKey{a.EventKey, a.At})
	}
	for _, a := range w.seen {
		e.Attempts = append(e.Attempts, a)
	}
	w.seen = nil
}

// collectAttempts reads the marks as they are now.
func (e *Evidence) collectAttempts(ctx context.Context, b *bus.Bus) error {
	w := Witness{}
	for _, o := range marks(b) {
		o.NoFollow = true
		if err := follow.Read(ctx, b, o, w.note); err != nil && !errors.Is(err, bus.ErrNoStream) {
			return err
		}
	}
	w.Testify(e)
	return nil
}

// marks are the places where payment's marks can be: the KV ledger's bucket, and with the
// partition ledger the event stream.
func marks(b *bus.Bus) []follow.Options {
	bucket := b.Names().Bucket("dedup")
	return []follow.Options{
		{Stream: "KV_" + bucket, Filters: []string{"$KV." + bucket + "." + payment + ".*"}, FromStart: true},
		{Filters: []string{b.Names().Root("ledger." + payment + ".*.*")}, FromStart: true},
	}
}

// note takes the attempts from one mark. A message that is none, as a page, has none.
func (w *Witness) note(m follow.Message) error {
	var mark struct {
		First    *event.Attempt  `json:"first_failure"`
		Attempts []event.Attempt `json:"attempts"`
	}
	if json.Unmarshal(m.Data, &mark) != nil {
		return nil // a page, or a deletion
	}
	if mark.First != nil {
		mark.Attempts = append(mark.Attempts, *mark.First)
	}
	key := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen = map[attemptKey]Attempt{}
	}
	for _, a := range mark.Attempts {
		w.seen[attemptKey{key, a.At}] = Attempt{Consumer: payment, EventKey: key, At: a.At, Class: a.Class, Reason: a.Reason, Error: a.Error}
	}
	return nil
}
