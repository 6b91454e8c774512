package inventory

import (
	"context"
	"errors"
	"time"
)

// watchEvery is how often the service looks whether its stock is still there.
const watchEvery = time.Second

// begin seeds the stock, for which it waits as long as the bus does; while the stock
// is lost, until a person brings it back.
func (s *Service) begin(ctx context.Context) error {
	for {
		var gone error // apart from err: waiting does not help
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

// watch looks until ctx ends. What keeps it from looking the consumer says.
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
