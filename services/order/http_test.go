package order

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/web"
)

func TestPlaceOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())

		body := `{"customer_id":"alice","currency":"EUR","items":[{"sku":"widget","quantity":2},{"sku":"anvil","quantity":1}]}`
		first := p.call(http.MethodPost, "/orders", key("k-1"), body)
		got := parse[accepted](t, first.body)
		if first.status != http.StatusAccepted || got.Status != Placed {
			t.Fatalf("POST: %d %s", first.status, first.body)
		}
		if l := first.header.Get("Location"); l != "/orders/"+got.OrderID {
			t.Errorf("Location is %q", l)
		}
		s.one("order.placed.v1", got.OrderID)

		a := p.call(http.MethodGet, first.header.Get("Location"), nil, "")
		v := parse[view](t, a.body)
		if a.status != http.StatusOK || v.Total != 2*2500+125000 || v.Currency != "EUR" || v.CustomerID != "alice" || len(v.Items) != 2 {
			t.Errorf("GET: %d %s", a.status, a.body)
		}
		if strings.Contains(a.body, "reason") || strings.Contains(a.body, "steps") {
			t.Errorf("GET shows too much: %s", a.body)
		}

		same := `{ "items":[{"quantity":2,"sku":"widget"},{"sku":"\u0061nvil","quantity":1}], "currency":"EUR","customer_id":"alice"}`
		if a := p.call(http.MethodPost, "/orders", key("k-1"), same); a.status != first.status || a.body != first.body ||
			a.header.Get("Location") != first.header.Get("Location") {
			t.Errorf("the same request again: %d %s", a.status, a.body)
		}
		a = p.call(http.MethodPost, "/orders", key("k-1"), twoWidgets)
		isProblem(t, "another request with the key", a, http.StatusUnprocessableEntity)
		if kind := parse[web.Problem](t, a.body).Type; kind != "urn:farandole:problem:idempotency-key-reused" {
			t.Errorf("another request with the key: type %q", kind)
		}
		s.one("order.placed.v1", got.OrderID)

		others := strings.Replace(body, "alice", "mallory", 1)
		a = p.call(http.MethodPost, "/orders", key("k-1"), others)
		if id := parse[accepted](t, a.body).OrderID; a.status != http.StatusAccepted || id == got.OrderID {
			t.Errorf("another customer's request with the same key: %d %s", a.status, a.body)
		}
	})
}

func TestPlaceOrderConcurrently(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		ps := []*process{s.start(config()), s.start(config())}
		const n = 20
		answers := make([]answer, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { answers[i], errs[i] = ps[i%2].insist(http.MethodPost, "/orders", key("k"), twoWidgets) })
		}
		wg.Wait()
		for i, a := range answers {
			if errs[i] != nil || a.status != http.StatusAccepted || a.body != answers[0].body {
				t.Fatalf("%v %d %s", errs[i], a.status, a.body)
			}
		}
		s.one("order.placed.v1", parse[accepted](t, answers[0].body).OrderID)
	})
}

func TestPlaceOrderRefuses(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, bustest.Server(t), database(t))
			p := s.start(config())
			order := func(customer, currency, items string) string {
				return fmt.Sprintf(`{"customer_id":%q,"currency":%q,"items":[%s]}`, customer, currency, items)
			}
			const ok = `{"sku":"widget","quantity":1}`
			for name, tt := range map[string]struct {
				key, body string
				status    int
				pointers  []string
			}{
				"no key":              {"", twoWidgets, 400, nil},
				"long key":            {strings.Repeat("k", 256), twoWidgets, 400, nil},
				"no body":             {"k", "", 400, []string{"#"}},
				"no object":           {"k", `[]`, 400, []string{"#"}},
				"unknown field":       {"k", `{"customer_id":"a","currency":"EUR","items":[` + ok + `],"total":1}`, 400, []string{"#/total"}},
				"field in other case": {"k", `{"Customer_ID":"a","currency":"EUR","items":[` + ok + `]}`, 400, []string{"#/Customer_ID"}},
				"repeated field":      {"k", `{"customer_id":"a","customer_id":"b","currency":"EUR","items":[` + ok + `]}`, 400, []string{"#/customer_id"}},
				"trailing garbage":    {"k", twoWidgets + "}", 400, []string{"#"}},
				"two objects":         {"k", twoWidgets + twoWidgets, 400, []string{"#"}},
				"fraction":            {"k", order("a", "EUR", `{"sku":"widget","quantity":1.5}`), 400, []string{"#/items/0/quantity"}},
				"overflow":            {"k", order("a", "EUR", `{"sku":"widget","quantity":9223372036854775808}`), 400, []string{"#/items/0/quantity"}},
				"not UTF-8":           {"k", "{\"customer_id\":\"\xff\",\"currency\":\"EUR\",\"items\":[" + ok + "]}", 400, []string{"#"}},
				"plain text":          {"k", twoWidgets, 415, nil},
				"too large":           {"k", order(strings.Repeat("a", maxBody), "EUR", ok), 413, nil},
				"customer with NUL":   {"k", `{"customer_id":"a\u0000b","currency":"EUR","items":[` + ok + `]}`, 422, []string{"#/customer_id"}},
				"nothing":             {"k", `{}`, 422, []string{"#/customer_id", "#/currency", "#/items"}},
				"long customer":       {"k", order(strings.Repeat("a", 129), "EUR", ok), 422, []string{"#/customer_id"}},
				"currency":            {"k", order("a", "eur", ok), 422, []string{"#/currency"}},
				"unknown currency":    {"k", order("a", "ABC", ok), 422, []string{"#/currency"}},
				"no currency":         {"k", order("a", "XXX", ok), 422, []string{"#/currency"}},
				"unknown sku":         {"k", order("a", "EUR", ok+`,{"sku":"x","quantity":1}`), 422, []string{"#/items/1/sku"}},
				"sku twice":           {"k", order("a", "EUR", ok+","+ok), 422, []string{"#/items/1/sku"}},
				"none of it":          {"k", order("a", "EUR", `{"sku":"widget","quantity":0}`), 422, []string{"#/items/0/quantity"}},
				"too many of it":      {"k", order("a", "EUR", `{"sku":"widget","quantity":1001}`), 422, []string{"#/items/0/quantity"}},
				"too many items":      {"k", order("a", "EUR", strings.Repeat(ok+",", 100)+ok), 422, []string{"#/items"}},
				"huge quantity":       {"k", order("a", "EUR", `{"sku":"widget","quantity":9223372036854775807}`), 422, []string{"#/items/0/quantity"}},
			} {
				header := key(tt.key)
				if tt.status == http.StatusUnsupportedMediaType {
					header["Content-Type"] = "text/plain"
				}
				if tt.key == "" {
					header = nil
				}
				a := p.call(http.MethodPost, "/orders", header, tt.body)
				isProblem(t, name, a, tt.status)
				var pointers []string
				if strings.Contains(a.body, "placeRequest") || strings.Contains(a.body, "Go ") {
					t.Errorf("%s: tells of the program: %s", name, a.body)
				}
				for _, e := range parse[web.Problem](t, a.body).Errors {
					pointers = append(pointers, e.Pointer)
				}
				if !slices.Equal(pointers, tt.pointers) {
					t.Errorf("%s: errors at %v, want %v", name, pointers, tt.pointers)
				}
			}
			if orders := p.orders(); len(orders) != 0 {
				t.Errorf("orders were recorded: %+v", orders)
			}
		})
	}
}

func isProblem(tb testing.TB, name string, a answer, status int) {
	tb.Helper()
	pr := parse[web.Problem](tb, a.body)
	if a.status != status || pr.Status != status || pr.Type == "" || pr.Title == "" || pr.Detail == "" ||
		a.header.Get("Content-Type") != "application/problem+json" {
		tb.Errorf("%s: %d %s %s, want a problem with status %d", name, a.status, a.header.Get("Content-Type"), a.body, status)
	}
}

func TestOtherRequests(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		isProblem(t, "unknown order", p.call(http.MethodGet, "/orders/ord-x", nil, ""), http.StatusNotFound)
		isProblem(t, "an id with NUL", p.call(http.MethodGet, "/orders/ord-%00", nil, ""), http.StatusNotFound)
		isProblem(t, "an id that is no text", p.call(http.MethodGet, "/orders/ord-%FF", nil, ""), http.StatusNotFound)
		isProblem(t, "cancel unknown", p.call(http.MethodPost, "/orders/ord-x/cancel", nil, ""), http.StatusNotFound)
		isProblem(t, "unknown path", p.call(http.MethodGet, "/nowhere", nil, ""), http.StatusNotFound)
		wrong := p.call(http.MethodDelete, "/orders/ord-x", nil, "")
		isProblem(t, "wrong method", wrong, http.StatusMethodNotAllowed)
		if allow := wrong.header.Get("Allow"); allow != "GET, HEAD" {
			t.Errorf("Allow is %q", allow)
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		id := p.order("k")
		for range 2 {
			a := p.call(http.MethodPost, "/orders/"+id+"/cancel", nil, "")
			if got := parse[accepted](t, a.body); a.status != http.StatusAccepted || got.OrderID != id || got.Status != Cancelling {
				t.Fatalf("cancel: %d %s", a.status, a.body)
			}
		}
		s.one("order.cancel_requested.v1", id)

		// What was under way is no longer confirmed.
		s.publish(captured(id), reserved(id), refunded(id))
		p.becomes(id, Cancelled)
		s.settled()
		s.one("order.cancelled.v1", id)
		s.none("order.confirmed.v1", id)
		if v := parse[view](t, p.call(http.MethodGet, "/orders/"+id, nil, "").body); v.Reason != "cancelled by customer" {
			t.Errorf("reason is %q", v.Reason)
		}
		isProblem(t, "cancel cancelled", p.call(http.MethodPost, "/orders/"+id+"/cancel", nil, ""), http.StatusConflict)
		if a := p.call(http.MethodPost, "/orders", key("k"), twoWidgets); parse[accepted](t, a.body).Status != Placed {
			t.Errorf("the answer to the first request has changed: %s", a.body)
		}

		id = p.order("k-2")
		s.publish(reserved(id))
		p.becomes(id, Confirmed)
		isProblem(t, "cancel confirmed", p.call(http.MethodPost, "/orders/"+id+"/cancel", nil, ""), http.StatusConflict)
		s.none("order.cancel_requested.v1", id)
	})
}

func TestNotReadyBeforeRun(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		svc, err := New(s.bus, s.db, config())
		if err != nil {
			t.Fatal(err)
		}
		p := &process{Service: svc, s: s, url: serve(t, svc)}
		a := p.call(http.MethodGet, "/orders/ord-x", nil, "")
		isProblem(t, "before Run", a, http.StatusServiceUnavailable)
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	})
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	s := newSystem(t, bustest.Server(t), filepath.Join(t.TempDir(), "order.db"))
	svc, err := New(s.bus, s.db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	want := []event.Type{"order.placed.v1", "order.deadline.v1", "payment.captured.v1", "inventory.reserved.v1", "payment.declined.v1", "payment.refunded.v1"}
	if got := svc.Registry().Types(); !slices.Equal(got, want) {
		t.Errorf("handles %v, want %v", got, want)
	}
	if err := svc.Health(); !errors.Is(err, ErrNotReady) {
		t.Errorf("Health before Run is %v, want ErrNotReady", err)
	}
}
