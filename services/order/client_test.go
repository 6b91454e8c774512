package order

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// answer is an HTTP response, read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (p *process) do(method, path string, header map[string]string, body string) (answer, error) {
	r, err := http.NewRequestWithContext(p.s.tb.Context(), method, p.url+path, bytes.NewBufferString(body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(data)}, err
}

// call is do for the test's own goroutine.
func (p *process) call(method, path string, header map[string]string, body string) answer {
	p.s.tb.Helper()
	a, err := p.do(method, path, header, body)
	if err != nil {
		p.s.tb.Fatal(err)
	}
	return a
}

func key(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }

// order places an order and returns its id.
func (p *process) order(k string) string {
	p.s.tb.Helper()
	id, err := p.place(k)
	if err != nil {
		p.s.tb.Fatal(err)
	}
	return id
}

// place places an order as a customer does, and returns its id.
func (p *process) place(k string) (string, error) {
	a, err := p.insist(http.MethodPost, "/orders", key(k), twoWidgets)
	if err != nil || a.status != http.StatusAccepted {
		return "", fmt.Errorf("POST /orders: %d %s (%w)", a.status, a.body, err)
	}
	var placed accepted
	err = json.Unmarshal([]byte(a.body), &placed)
	return placed.OrderID, err
}

// insist is do as customers do it: a service that is too busy now, or with the same
// request, is asked again.
func (p *process) insist(method, path string, header map[string]string, body string) (answer, error) {
	for deadline := time.Now().Add(soon); ; {
		a, err := p.do(method, path, header, body)
		again := a.status == http.StatusServiceUnavailable || a.status == http.StatusConflict
		if err != nil || !again || time.Now().After(deadline) {
			return a, err
		}
	}
}
