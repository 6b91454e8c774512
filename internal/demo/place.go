package demo

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// placedOrder is an order that the order service has accepted.
type placedOrder struct {
	plannedOrder
	id string // given by the order service
}

// placeAll places all orders, at the rate and concurrency of cfg, and cancels those
// of the kind regret. It returns them in the order of the plan, and the first
// error. Each order is sent until it is accepted or ctx ends.
func placeAll(ctx context.Context, c *client, orders []plannedOrder, cfg Config, done *atomic.Int64) ([]placedOrder, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := rate.NewLimiter(rate.Inf, 1)
	if cfg.Rate > 0 {
		limit.SetLimit(rate.Limit(cfg.Rate))
	}
	result := make([]placedOrder, len(orders))
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
				result[i] = placedOrder{orders[i], id}
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

func placeOne(ctx context.Context, c *client, o plannedOrder) (string, error) {
	id, err := c.place(ctx, o)
	if err == nil && o.kind == regret {
		err = c.cancel(ctx, id)
	}
	return id, err
}
