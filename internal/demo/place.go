package demo

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// taken is how an order was taken.
type taken struct {
	purchase
	id string // given by the order service
}

// placeAll places all orders, at the wanted rate and concurrency, and has
// those cancelled whose customers regret. It returns them in their order, and
// the first error; each order is tried until it is accepted or ctx ends.
func placeAll(ctx context.Context, c *client, orders []purchase, cfg Config, done *atomic.Int64) ([]taken, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := rate.NewLimiter(rate.Inf, 1)
	if cfg.Rate > 0 {
		limit.SetLimit(rate.Limit(cfg.Rate))
	}
	result := make([]taken, len(orders))
	next := make(chan int)
	var workers sync.WaitGroup
	for range cfg.Concurrency {
		workers.Go(func() {
			for i := range next {
				id, err := placeOne(ctx, c, orders[i])
				if err != nil {
					cancel(err)
					continue
				}
				result[i] = taken{orders[i], id}
				done.Add(1)
			}
		})
	}
	for i := range orders {
		if limit.Wait(ctx) != nil || ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return result, err
	}
	return result, ctx.Err()
}

func placeOne(ctx context.Context, c *client, o purchase) (string, error) {
	id, err := c.place(ctx, o)
	if err == nil && o.kind == regret {
		err = c.cancel(ctx, id)
	}
	return id, err
}
