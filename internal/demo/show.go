package demo

import (
	"context"
	"time"
)

// showProgress tells where the run stands until ctx ends.
func (r *run) showProgress(ctx context.Context) error {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		r.tell(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.tell(context.WithoutCancel(ctx))
			return nil
		}
	}
}

func (r *run) tell(ctx context.Context) {
	p := Progress{
		Elapsed: time.Since(r.begun), Orders: r.cfg.Orders,
		Placed: int(r.placed.Load()), Crashes: int(r.crashes.Load()),
	}
	p.Phase, _ = r.phase.Load().(string)
	_, p.Confirmed, p.Cancelled = r.watcher.counts()
	p.Duplicates, _ = r.duplicator.counts()
	// A look that fails is worth no word: the next one comes soon.
	if stream, err := r.bus.JetStream().Stream(ctx, r.bus.Names().DLQStream()); err == nil {
		p.DeadLetters = int(stream.CachedInfo().State.Msgs) //nolint:gosec // a small number
	}
	r.cfg.Progress(p)
}
