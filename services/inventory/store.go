package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// store reads and writes the service's documents in the event stream.
type store struct {
	orders *state.Store[Order]
	skus   *state.Store[Stock]
}

func openStore(b *bus.Bus, l state.Ledger) (store, error) {
	orders, err := state.Of[Order](b, l, Name)
	if err != nil {
		return store{}, err
	}
	skus, err := state.Of[Stock](b, l, Name)
	return store{orders, skus}, err
}

const skuPrefix = "sku-"

func orderKey(id string) event.Key { return event.Key("order-" + id) }

func skuKey(sku string) event.Key { return event.Key(skuPrefix + sku) }

// seed stores the initial stock of every SKU that has never had a document. A lost
// document is stored again if anew is true; otherwise the error matches ErrStockLost.
func (s store) seed(ctx context.Context, initial map[string]int64, anew bool) error {
	for sku, n := range initial {
		stock := Stock{SKU: sku, Initial: n, Available: n}
		err := s.skus.Seed(ctx, skuKey(sku), stock)
		if anew && errors.Is(err, state.ErrLost) {
			err = s.skus.Create(ctx, skuKey(sku), stock)
		}
		if err != nil && !errors.Is(err, bus.ErrConflict) { // a conflict: another replica has stored it
			return fmt.Errorf("inventory: seed: %w", lost(err))
		}
	}
	return nil
}

// check returns an error matching ErrStockLost if the document of a seeded SKU is gone.
func (s store) check(ctx context.Context) error { return lost(s.skus.Check(ctx)) }

// lost adds ErrStockLost to an error about a lost document: it says what to do.
func lost(err error) error {
	if errors.Is(err, state.ErrLost) {
		return fmt.Errorf("%w: %w", ErrStockLost, err)
	}
	return err
}

// stock returns the documents of all SKUs, sorted by SKU.
func (s store) stock(ctx context.Context) ([]Stock, error) {
	latest := map[string]Stock{} // Each calls again for a document that changes meanwhile
	err := s.skus.Each(ctx, func(token string, x Stock) error {
		if strings.HasPrefix(token, skuPrefix) {
			latest[token] = x
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(latest), func(a, b Stock) int { return strings.Compare(a.SKU, b.SKU) }), nil
}
