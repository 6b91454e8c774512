package demo

import (
	"context"
	"time"
)

// showProgress calls Config.Progress until ctx ends.
func (r *run) showProgress(ctx context.Context) error {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		r.tellProgress(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.tellProgress(context.WithoutCancel(ctx))
			return nil
		}
	}
}

func (r *run) tellProgress(ctx context.Context) {
	p := Progress{
		Elapsed: time.Since(r.begun), Orders: r.cfg.Orders,
		Placed: int(r.placed.Load()), Crashes: int(r.crashes.Load()),
	}
	p.Phase, _ = r.phase.Load().(string)
	_, p.Confirmed, p.Cancelled = r.watcher.counts()
	p.Duplicates, _ = r.duplicator.counts()
	p.Breaker = r.breaker.look(time.Now())
	// An error is not reported: the next call comes soon.
	if stream, err := r.bus.Stream(ctx, r.bus.Names().DLQStream()); err == nil {
		p.DeadLetters = int(stream.CachedInfo().State.Msgs) //nolint:gosec // a small number
	}
	p.Steps, p.Done = r.steps(), r.stepsDone(p)
	r.cfg.Progress(p)
}
