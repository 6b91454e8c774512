package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	e := bustest.Event(t, order("o1"))
	key := string(event.EventKeyOf(e))
	structured, err := event.EncodeStructured(e)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, tt := range []struct {
		name   string
		id     string
		at     time.Time
		change func(h http.Header, body []byte) []byte
		want   int
	}{
		{"good", key, now, nil, http.StatusNoContent},
		{"again", key, now, nil, http.StatusNoContent},
		{"no signature", key, now, func(h http.Header, b []byte) []byte { h.Del("webhook-signature"); return b }, http.StatusUnauthorized},
		{"other body", key, now, func(_ http.Header, b []byte) []byte { return append(b, ' ') }, http.StatusUnauthorized},
		{"other id", key, now, func(h http.Header, b []byte) []byte { h.Set("webhook-id", "x"); return b }, http.StatusUnauthorized},
		{"later timestamp", key, now, func(h http.Header, b []byte) []byte {
			h.Set("webhook-timestamp", strconv.FormatInt(now.Unix()+1, 10))
			return b
		}, http.StatusUnauthorized},
		{"recorded six minutes ago", key, now.Add(-6 * time.Minute), nil, http.StatusUnauthorized},
		{"from the future", key, now.Add(6 * time.Minute), nil, http.StatusUnauthorized},
		{"another key on a recorded request", key, now, func(h http.Header, b []byte) []byte { h.Set("Idempotency-Key", "x"); return b }, http.StatusBadRequest},
		{"another key, signed", "x", now, nil, http.StatusBadRequest},
		{"not an event", key, now, func(h http.Header, b []byte) []byte { h.Set("Content-Type", "text/plain"); return b }, http.StatusBadRequest},
		{"too large", key, now, func(http.Header, []byte) []byte { return make([]byte, maxBody+1) }, http.StatusRequestEntityTooLarge},
	} {
		r := newReceiver(t, secret)
		signature, err := signer.Sign(tt.id, tt.at, structured.Data)
		if err != nil {
			t.Fatal(err)
		}
		h, body := http.Header{}, append([]byte(nil), structured.Data...)
		for name, value := range map[string]string{
			"Content-Type": "application/cloudevents+json", "Idempotency-Key": tt.id,
			"webhook-id": tt.id, "webhook-timestamp": strconv.FormatInt(tt.at.Unix(), 10), "webhook-signature": signature,
		} {
			h.Set(name, value)
		}
		if tt.change != nil {
			body = tt.change(h, body)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(string(body)))
		req.Header = h
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		taken := 0
		if tt.want == http.StatusNoContent {
			taken = 1
		}
		if w.Code != tt.want || r.count(t) != taken {
			t.Errorf("%s: %d %s, %d taken; want %d", tt.name, w.Code, w.Body, r.count(t), tt.want)
		}
	}
}

func TestReceiverNeedsASecret(t *testing.T) {
	t.Parallel()
	for _, secrets := range [][]string{nil, {"whsec_***"}} {
		if r, err := open(t.Context(), filepath.Join(t.TempDir(), "taken.db"), secrets...); err == nil {
			t.Errorf("open = %v, nil", r)
		}
	}
}
