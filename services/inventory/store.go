package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farandole/farandole/bus"
)

// Bucket is the short name of the service's KV bucket.
const Bucket = "inventory"

// store keeps the two kinds of document. Puts are compare-and-set: an error
// matching bus.ErrConflict means that somebody else wrote first. Revisions only grow.
type store interface {
	order(ctx context.Context, id string) (Order, uint64, error)
	putOrder(ctx context.Context, o Order, revision uint64) (uint64, error)
	stock(ctx context.Context, sku string) (Stock, uint64, error)
	putStock(ctx context.Context, s Stock, revision uint64) error
	allStock(ctx context.Context) ([]Stock, error)
}

// kvStore is the store in the bucket.
type kvStore struct {
	orders *bus.Bucket[Order]
	skus   *bus.Bucket[Stock]
}

var _ store = (*kvStore)(nil)

func openStore(ctx context.Context, b *bus.Bus) (*kvStore, error) {
	orders, err := bus.OpenBucket[Order](ctx, b, Bucket)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	skus, err := bus.OpenBucket[Stock](ctx, b, Bucket)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	return &kvStore{orders: orders, skus: skus}, nil
}

const (
	orderPrefix = "order-"
	skuPrefix   = "sku-"
)

func (s *kvStore) order(ctx context.Context, id string) (Order, uint64, error) {
	o, revision, err := s.orders.Get(ctx, bus.Key(orderPrefix+id))
	o.ID = id
	return o, revision, err
}

func (s *kvStore) putOrder(ctx context.Context, o Order, revision uint64) (uint64, error) {
	return s.orders.Put(ctx, bus.Key(orderPrefix+o.ID), o, revision)
}

func (s *kvStore) stock(ctx context.Context, sku string) (Stock, uint64, error) {
	x, revision, err := s.skus.Get(ctx, bus.Key(skuPrefix+sku))
	x.SKU = sku
	return x, revision, err
}

func (s *kvStore) putStock(ctx context.Context, x Stock, revision uint64) error {
	_, err := s.skus.Put(ctx, bus.Key(skuPrefix+x.SKU), x, revision)
	return err
}

func (s *kvStore) allStock(ctx context.Context) (all []Stock, err error) {
	latest := map[string]Stock{} // one that is written meanwhile is seen again
	err = s.skus.Each(ctx, func(token string, x Stock, _ uint64) error {
		if strings.HasPrefix(token, skuPrefix) {
			latest[token] = x
		}
		return nil
	})
	return slices.Collect(maps.Values(latest)), err
}

// seed writes the initial stock of every SKU that is not there yet.
func seed(ctx context.Context, s store, initial map[string]int64) error {
	for sku, n := range initial {
		_, revision, err := s.stock(ctx, sku)
		if err != nil {
			return err
		}
		if revision > 0 {
			continue
		}
		err = s.putStock(ctx, Stock{SKU: sku, Initial: n, Available: n}, 0)
		if err != nil && !errors.Is(err, bus.ErrConflict) { // a sibling may have been faster
			return err
		}
	}
	return nil
}
