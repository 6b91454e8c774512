package payment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
	"github.com/farandole/farandole/services/events"
)

const (
	maxAnswer     = 64 << 10 // how many bytes of an answer are read
	maxRetryAfter = 30 * time.Second
	maxQuote      = 200 // how many bytes of a failed answer the error quotes
)

// client calls the gateway. It is safe for concurrent use.
type client struct {
	url     string
	http    *http.Client
	metrics *metrics
}

func newClient(url string, guard *resilience.Guard, connections int, m *metrics) *client {
	return &client{url: url, metrics: m, http: &http.Client{
		Transport: resilience.NewTransport(guard, &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: connections,
			IdleConnTimeout:     90 * time.Second,
		}),
		// Go would follow some redirects of a POST with a GET. A redirect is an error here.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// result is how a charge ended.
type result string

const (
	chargeCaptured result = "captured"
	chargeDeclined result = "declined"
	chargeVoided   result = "voided" // the order was cancelled before: nothing is charged
)

// charge is the gateway's answer to a charge.
type charge struct {
	result   result
	ChargeID string `json:"charge_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Reason   string `json:"reason"`
}

// void is the gateway's answer to a void. If nothing was charged, ChargeID is
// empty and Amount is 0.
type void struct {
	RefundID string `json:"refund_id"`
	ChargeID string `json:"charge_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// problemVoided is the type of the problem document with which the gateway
// refuses to charge a voided key.
const problemVoided = "urn:farandole:gateway:voided"

// The idempotency keys of an order, escaped because they go into a header and
// an order id may hold any text.
func chargeKey(orderID string) string { return "charge-" + event.EscapeKey(event.Key(orderID)) }
func refundKey(orderID string) string { return "refund-" + event.EscapeKey(event.Key(orderID)) }

// charge charges the order's total. However often it is called for an order, the
// gateway charges once.
func (c *client) charge(ctx context.Context, p events.Placed) (charge, error) {
	status, answer, err := c.post(ctx, "/charges", chargeKey(p.OrderID), map[string]any{
		"order_id": p.OrderID, "customer_id": p.CustomerID, "amount": p.Total.Amount, "currency": p.Total.Currency,
	}, http.StatusPaymentRequired, http.StatusConflict)
	if err != nil {
		return charge{}, err
	}
	var out charge
	switch {
	case status == http.StatusConflict && isVoided(answer):
		return charge{result: chargeVoided}, nil
	case status == http.StatusConflict:
		return charge{}, refusal(status, answer)
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return charge{}, fmt.Errorf("%w: charge: answer: %w", ErrGateway, err)
	}
	if status == http.StatusPaymentRequired {
		out.result = chargeDeclined
		return out, nil
	}
	if out.ChargeID == "" || out.Amount != p.Total.Amount || out.Currency != p.Total.Currency {
		return charge{}, fmt.Errorf("%w: charge: answer %q of %d %s, want %d %s", ErrGateway,
			out.ChargeID, out.Amount, out.Currency, p.Total.Amount, p.Total.Currency)
	}
	out.result = chargeCaptured
	return out, nil
}

// void refunds the order's charge, if there is one. From then on the gateway
// refuses to charge the order.
func (c *client) void(ctx context.Context, orderID string) (void, error) {
	_, answer, err := c.post(ctx, "/voids", refundKey(orderID), map[string]any{
		"charge_key": chargeKey(orderID), "order_id": orderID,
	})
	if err != nil {
		return void{}, err
	}
	var out void
	if err := json.Unmarshal(answer, &out); err != nil {
		return void{}, fmt.Errorf("%w: void: answer: %w", ErrGateway, err)
	}
	return out, nil
}

// post makes one call. Any status but 200, 201 and the wanted
// ones is an error, which also tells the consumer whether to try again.
func (c *client) post(ctx context.Context, path, key string, body any, wanted ...int) (status int, answer []byte, err error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: encode: %w", ErrGateway, err)
	}
	start := time.Now()
	status, header, answer, err := c.do(ctx, path, key, data)
	if !errors.Is(err, resilience.ErrOpen) { // else nothing was sent
		c.metrics.call(path, status, time.Since(start))
	}
	if err != nil {
		return 0, nil, err
	}
	if status == http.StatusOK || status == http.StatusCreated {
		return status, answer, nil
	}
	for _, w := range wanted {
		if status == w {
			return status, answer, nil
		}
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if after := resilience.RetryAfter(header.Get("Retry-After"), time.Now()); after > 0 {
			return 0, nil, consumer.RetryAfter(answerError(status, answer), min(after, maxRetryAfter))
		}
	}
	return 0, nil, refusal(status, answer)
}

func (c *client) do(ctx context.Context, path, key string, data []byte) (status int, header http.Header, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%w: %w", ErrGateway, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%w: %s: %w", ErrGateway, path, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%w: %s: %w", ErrGateway, path, err)
	}
	return resp.StatusCode, resp.Header, answer, nil
}

// refusal is the error of an answer that is not a success. It is permanent if the
// status says that the request is wrong. 408, 425 and 429 say that the same
// request may succeed later.
func refusal(status int, answer []byte) error {
	err := answerError(status, answer)
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return err
	default:
		return consumer.Permanent(err)
	}
}

// answerError quotes an answer that is not a success.
func answerError(status int, answer []byte) error {
	var problem struct{ Title, Detail string }
	if json.Unmarshal(answer, &problem) == nil && problem.Title != "" {
		return fmt.Errorf("%w: %d %s: %s", ErrGateway, status, problem.Title, problem.Detail)
	}
	return fmt.Errorf("%w: %d %q", ErrGateway, status, answer[:min(len(answer), maxQuote)])
}

func isVoided(answer []byte) bool {
	var problem struct{ Type string }
	return json.Unmarshal(answer, &problem) == nil && problem.Type == problemVoided
}
