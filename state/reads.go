package state

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
)

// Reads are the documents that one run of a handler has read, in which version.
// What comes of the run holds only if they were the committed, current ones: an
// error, too, and a step that changes nothing. The consumer sees to that; a
// handler only has to read with the context it was given. The nil Reads are none.
type Reads struct {
	mu  sync.Mutex
	all map[read]struct{}
}

type read struct {
	ledger  *dedup.Stream
	subject string
	version dedup.Version
}

type readsKey struct{}

// Track returns a context for one run of a handler, and what [Store.Get] reads with it.
func Track(ctx context.Context) (context.Context, *Reads) {
	r := &Reads{all: map[read]struct{}{}}
	return context.WithValue(ctx, readsKey{}, r), r
}

// note adds a read to those of its run, if it is part of one.
func note(ctx context.Context, x read) {
	r, ok := ctx.Value(readsKey{}).(*Reads)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[x] = struct{}{}
}

// Confirm returns nil when all that was read from l's documents is committed and
// current. An error that matches [dedup.ErrStale] means that it is not: whatever
// the run came to is void, and it has to be done again. Others are those of
// [dedup.Stream.Confirm].
func (r *Reads) Confirm(ctx context.Context, l dedup.Ledger) error {
	stream, ok := l.(*dedup.Stream)
	kept := r.keep(l, nil)
	if !ok || len(kept) == 0 {
		return nil
	}
	if err := stream.Confirm(ctx, kept); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// keep returns messages that make a step rest on what was read, but for the
// documents that it changes: those are checked by their change.
func (r *Reads) keep(l dedup.Ledger, changed map[string]bool) (msgs []*nats.Msg) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.all {
		if dedup.Ledger(x.ledger) == l && !changed[x.subject] {
			msgs = append(msgs, dedup.KeepDocument(x.subject, x.version))
		}
	}
	return msgs
}
