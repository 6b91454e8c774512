package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

// client is a customer of the order service. It sends each request again, with the
// same Idempotency-Key and to the next replica, until it gets an answer.
type client struct {
	urls []string
	http *http.Client
	next atomic.Uint64
}

const (
	clientTimeout = 15 * time.Second // of one try; the service answers within 10 s
	clientPause   = 25 * time.Millisecond
)

func newClient(urls []string, concurrency int) *client {
	return &client{urls: urls, http: &http.Client{
		Timeout:   clientTimeout,
		Transport: &http.Transport{MaxIdleConnsPerHost: concurrency},
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// place places an order and returns its id.
func (c *client) place(ctx context.Context, o plannedOrder) (string, error) {
	body, err := json.Marshal(struct {
		CustomerID string `json:"customer_id"`
		Currency   string `json:"currency"`
		Items      []line `json:"items"`
	}{o.customer, "EUR", o.items})
	if err != nil {
		return "", fmt.Errorf("demo: place order: %w", err)
	}
	answer, err := c.post(ctx, "/orders", o.key, body)
	if err != nil {
		return "", fmt.Errorf("demo: place order %s: %w", o.key, err)
	}
	var accepted struct {
		OrderID string `json:"order_id"`
	}
	if err := json.Unmarshal(answer, &accepted); err != nil || accepted.OrderID == "" {
		return "", fmt.Errorf("demo: place order %s: answer without order_id: %s", o.key, answer)
	}
	return accepted.OrderID, nil
}

// cancel asks for an order to be cancelled.
func (c *client) cancel(ctx context.Context, id string) error {
	if _, err := c.post(ctx, "/orders/"+id+"/cancel", "", nil); err != nil {
		return fmt.Errorf("demo: cancel order %s: %w", id, err)
	}
	return nil
}

// post sends a request until the service, which may be down, answers it.
func (c *client) post(ctx context.Context, path, key string, body []byte) ([]byte, error) {
	for {
		answer, again, err := c.try(ctx, path, key, body)
		if err == nil || again == 0 {
			return answer, err
		}
		if !backoff.Wait(ctx, again) {
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// try sends a request once. On an error, again is how long to wait before the next
// try, or 0 if another try would fail as well.
func (c *client) try(ctx context.Context, path, key string, body []byte) (answer []byte, again time.Duration, err error) {
	url := c.urls[c.next.Add(1)%uint64(len(c.urls))]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, clientPause, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return nil, clientPause, err
	case resp.StatusCode < 300:
		return answer, 0, nil
	default:
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
			again = clientPause
		}
		// A service that is busy, or still with an earlier try, says how long to wait.
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			again = time.Duration(s) * time.Second
		}
		return nil, again, fmt.Errorf("%s: %s", resp.Status, answer)
	}
}
