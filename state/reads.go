package state

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
)

// Reads are the documents that one run of a handler has read, with their versions.
// The result of the run is valid only if these versions are committed and current.
// The consumer checks that; the handler only has to read with the context that it
// got. A nil *Reads holds no documents.
type Reads struct {
	mu  sync.Mutex
	all map[read]struct{}
}

type read struct {
	ledger  Ledger
	subject string
	version dedup.Version
}

type readsKey struct{}

// Track returns a context for one run of a handler, and the Reads to which [Store.Get]
// adds what is read with that context.
func Track(ctx context.Context) (context.Context, *Reads) {
	r := new(Reads)
	return context.WithValue(ctx, readsKey{}, r), r
}

// note adds x to the Reads of ctx. Outside of a handler's run it does nothing.
func note(ctx context.Context, x read) {
	r, ok := ctx.Value(readsKey{}).(*Reads)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[read]struct{}{}
	}
	r.all[x] = struct{}{}
}

// Confirm returns nil if all documents that were read with ledger l are committed and
// current. An error that matches [dedup.ErrStale] says that they are not: the result
// of the run is void, and the handler has to run again. Other errors are those of
// [dedup.Partitions.Confirm].
func (r *Reads) Confirm(ctx context.Context, l dedup.Ledger) error {
	documents, ok := l.(Ledger)
	kept := r.keep(l, nil)
	if !ok || len(kept) == 0 {
		return nil
	}
	if err := documents.Confirm(ctx, kept); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// keep returns a message for each document that was read with ledger l: the step is
// stored only if the document is still in that version. It leaves out the documents
// in changed: the change of a document checks its version, too.
func (r *Reads) keep(l dedup.Ledger, changed map[string]bool) (msgs []*nats.Msg) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.all {
		if any(x.ledger) == any(l) && !changed[x.subject] {
			msgs = append(msgs, dedup.KeepDocument(x.subject, x.version))
		}
	}
	return msgs
}
