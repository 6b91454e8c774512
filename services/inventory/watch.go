package inventory

import (
	"context"
	"errors"
	"time"
)

// watchEvery is how often the service checks whether its stock still exists.
const watchEvery = time.Second

// begin stores the initial stock. It waits for the stream as long as the bus does. If
// the stock is lost it waits, without a limit, until somebody brings it back.
func (s *Service) begin(ctx context.Context) error {
	for {
		var gone error // apart from err, because Await would try again
		err := s.bus.Await(ctx, func(ctx context.Context) error {
			err := s.store.seed(ctx, s.initial, s.reseed)
			if gone = nil; errors.Is(err, ErrStockLost) {
				gone, err = err, nil
			}
			return err
		})
		if gone == nil || err != nil {
			s.lost.Store(nil)
			return err
		}
		s.lost.Store(&gone)
		s.log.Error().Err(gone).Msg("nothing is handled")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchEvery):
		}
	}
}

// watch checks the stock until ctx ends. Other errors than a lost stock are outages,
// which the consumer reports.
func (s *Service) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchEvery):
		}
		switch err := s.store.check(ctx); {
		case err == nil:
			s.lost.Store(nil)
		case errors.Is(err, ErrStockLost):
			s.lost.Store(&err)
		}
	}
}
