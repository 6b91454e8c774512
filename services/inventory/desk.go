package inventory

import (
	"context"
	"errors"
	"sync"

	"github.com/farandole/farandole/bus"
)

// desk serves the changes of one SKU in this process. All orders want the same
// few SKUs; if each changed the document on its own, all but one would lose the
// compare-and-set each time. So what has gathered while one write was under
// way is written together by the next. The compare-and-set still guards
// against other processes.
type desk struct {
	mu    sync.Mutex
	busy  bool // somebody serves
	queue []*errand
}

// errand is one change of the document. It may be applied more than once, to
// newer documents; the last time counts.
type errand struct {
	change func(Stock) (next Stock, changed bool)
	lead   chan struct{} // told that it is its turn to serve
	done   chan error
}

// do applies change durably. It does not begin after ctx's end, for this run
// may have been overtaken; but what is under way does not end with ctx: it is
// bounded by the store's own timeouts, and others may depend on it.
func (d *desk) do(ctx context.Context, st store, sku string, change func(Stock) (Stock, bool)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := &errand{change: change, lead: make(chan struct{}, 1), done: make(chan error, 1)}
	d.mu.Lock()
	d.queue = append(d.queue, e)
	if !d.busy {
		d.busy = true
		e.lead <- struct{}{}
	}
	d.mu.Unlock()
	select {
	case <-e.lead:
		d.serve(context.WithoutCancel(ctx), st, sku)
		return <-e.done
	case err := <-e.done:
		return err
	}
}

// serve does all errands that have gathered, its own among them, and passes
// the turn on: nobody serves for others longer than for itself.
func (d *desk) serve(ctx context.Context, st store, sku string) {
	d.mu.Lock()
	batch := d.queue
	d.queue = nil
	d.mu.Unlock()
	err := write(ctx, st, sku, batch)
	for _, e := range batch {
		e.done <- err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 {
		d.queue[0].lead <- struct{}{}
		return
	}
	d.busy = false
}

// write brings the document from whatever it is to what all changes make of it.
func write(ctx context.Context, st store, sku string, batch []*errand) error {
	for {
		x, revision, err := st.stock(ctx, sku)
		if err != nil {
			return err
		}
		changed := false
		for _, e := range batch {
			next, did := e.change(x)
			if did {
				x, changed = next, true
			}
		}
		if !changed {
			return nil
		}
		err = st.putStock(ctx, x, revision)
		if !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
}
