package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
)

// Statuses that an order ends with.
const (
	confirmed = "confirmed"
	cancelled = "cancelled"
)

// shop is the order service, seen by a customer.
type shop struct {
	url string
}

// place places an order for one widget, as often as it takes: the service may
// be down, or go down with the answer. It returns the order's id.
func (s shop) place(ctx context.Context, key, customer string) (string, error) {
	body, err := json.Marshal(map[string]any{
		"customer_id": customer, "currency": "EUR",
		"items": []map[string]any{{"sku": "widget", "quantity": 1}},
	})
	if err != nil {
		return "", err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := do(ctx, http.MethodPost, s.url+"/orders", http.Header{"Idempotency-Key": {key}}, body)
		if err == nil {
			var order struct {
				ID string `json:"order_id"`
			}
			if err := json.Unmarshal(answer, &order); err != nil || order.ID == "" {
				return "", fmt.Errorf("place %s: answer %q: %w", key, answer, err)
			}
			return order.ID, nil
		}
		if status := (*statusError)(nil); errors.As(err, &status) && status.code < 500 && status.code != http.StatusConflict { // 409: an earlier try is under way
			return "", fmt.Errorf("place %s: %w", key, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("place %s: %w", key, err)
		}
	}
}

// status returns where an order stands.
func (s shop) status(ctx context.Context, id string) (string, error) {
	answer, err := get(ctx, s.url+"/orders/"+id)
	if err != nil {
		return "", err
	}
	var order struct {
		Status string `json:"status"`
	}
	err = json.Unmarshal(answer, &order)
	return order.Status, err
}

// mustPlace places one order.
func (s shop) mustPlace(t testing.TB, key, customer string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	id, err := s.place(ctx, key, customer)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// awaitStatus waits until all orders have ended as wanted.
func (s shop) awaitStatus(t testing.TB, want string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		bustest.Eventually(t, patience, func() error {
			got, err := s.status(t.Context(), id)
			if err == nil && got != want {
				err = fmt.Errorf("order %s is %s, want %s", id, got, want)
				if slices.Contains([]string{confirmed, cancelled}, got) {
					t.Fatal(err) // it will not change any more
				}
			}
			return err
		})
	}
}

// customers place orders at the same time, in the background.
type customers struct {
	keys chan string // one order each
	work sync.WaitGroup

	mu  sync.Mutex
	ids []string
	err error
}

// newCustomers starts n customers, who order until done is called or ctx ends.
func newCustomers(ctx context.Context, s shop, n int, name string) *customers {
	c := &customers{keys: make(chan string)}
	for range n {
		c.work.Go(func() {
			for key := range c.keys {
				id, err := s.place(ctx, key, name)
				c.mu.Lock()
				c.ids, c.err = append(c.ids, id), errors.Join(c.err, err)
				c.mu.Unlock()
			}
		})
	}
	return c
}

// done waits for the customers and returns the ids of their orders.
func (c *customers) done(t testing.TB) []string {
	t.Helper()
	close(c.keys)
	c.work.Wait()
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.ids
}
