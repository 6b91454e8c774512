package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/services/payment/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a gateway whose journal is at path.
func start(t *testing.T, path string) (*gateway.Gateway, string, *http.Client) {
	t.Helper()
	g, err := gateway.New(gateway.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	both := http.NewServeMux() // merchants' and operators' paths differ
	both.Handle("/", g.Handler())
	both.Handle("/books", g.Admin())
	both.Handle("/faults", g.Admin())
	srv := httptest.NewServer(both)
	t.Cleanup(func() {
		srv.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, srv.URL, srv.Client()
}

// reply is an answer; status 0 means that there was none.
type reply struct {
	status   int
	replayed bool
	header   http.Header
	body     map[string]any
}

func call(ctx context.Context, t *testing.T, c *http.Client, method, url, key, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil // else the client itself would try again what is lost
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return reply{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := reply{status: resp.StatusCode, replayed: resp.Header.Get("Idempotent-Replayed") == "true", header: resp.Header}
	if err := json.Unmarshal(data, &r.body); err != nil && resp.StatusCode != http.StatusNotFound {
		t.Fatalf("%s %s: %d %s: %v", method, url, resp.StatusCode, data, err)
	}
	return r
}

func chargeBody(order, customer string, amount int64) string {
	return fmt.Sprintf(`{"order_id":%q,"customer_id":%q,"amount":%d,"currency":"EUR"}`, order, customer, amount)
}

func voidBody(order string) string {
	return fmt.Sprintf(`{"charge_key":"charge-%s","order_id":%q}`, order, order)
}

// client is what tests ask of one gateway.
type client struct {
	t    *testing.T
	url  string
	http *http.Client
}

func (c client) charge(order, customer string) reply {
	c.t.Helper()
	return call(c.t.Context(), c.t, c.http, http.MethodPost, c.url+"/charges", "charge-"+order, chargeBody(order, customer, 2500))
}

func (c client) void(order string) reply {
	c.t.Helper()
	return call(c.t.Context(), c.t, c.http, http.MethodPost, c.url+"/voids", "refund-"+order, voidBody(order))
}

func (c client) books() []any {
	c.t.Helper()
	return call(c.t.Context(), c.t, c.http, http.MethodGet, c.url+"/books", "", "").body["charges"].([]any)
}

func newClient(t *testing.T, path string) (client, *gateway.Gateway) {
	t.Helper()
	g, url, c := start(t, path)
	return client{t, url, c}, g
}

func TestSameKeySameAnswer(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	first, again := c.charge("o1", "anna"), c.charge("o1", "anna")
	if first.status != 201 || first.replayed || first.body["status"] != "captured" || first.body["charge_id"] == "" {
		t.Fatalf("%+v", first)
	}
	if again.status != 201 || !again.replayed || again.body["charge_id"] != first.body["charge_id"] {
		t.Fatalf("%+v", again)
	}
	other := call(t.Context(), t, c.http, http.MethodPost, c.url+"/charges", "charge-o1", chargeBody("o1", "anna", 1))
	if other.status != 422 || other.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%+v", other)
	}
	if n := len(c.books()); n != 1 {
		t.Fatalf("%d charges", n)
	}
}

func TestDeclineStays(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	for i := range 2 {
		r := c.charge("o1", "decline-anna")
		if r.status != 402 || r.body["status"] != "declined" || r.body["reason"] == "" || r.replayed != (i == 1) {
			t.Fatalf("%+v", r)
		}
	}
	if v := c.void("o1"); v.status != 201 || v.body["amount"] != 0.0 || v.body["charge_id"] != "" {
		t.Fatalf("%+v", v)
	}
	if n := len(c.books()); n != 0 {
		t.Fatalf("%d charges", n)
	}
}

func TestVoidRefundsOnce(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	made := c.charge("o1", "anna")
	first, again := c.void("o1"), c.void("o1")
	if first.status != 201 || first.body["amount"] != 2500.0 || first.body["currency"] != "EUR" || first.body["charge_id"] != made.body["charge_id"] {
		t.Fatalf("%+v", first)
	}
	if !again.replayed || again.body["refund_id"] != first.body["refund_id"] {
		t.Fatalf("%+v", again)
	}
	// Another key of the void changes nothing: it is the charge that is voided.
	other := call(t.Context(), t, c.http, http.MethodPost, c.url+"/voids", "another", voidBody("o1"))
	if !other.replayed || other.body["refund_id"] != first.body["refund_id"] {
		t.Fatalf("%+v", other)
	}
	if r := call(t.Context(), t, c.http, http.MethodPost, c.url+"/voids", "refund-o1", voidBody("o2")); r.status != 422 {
		t.Fatalf("%+v", r)
	}
	if late := c.charge("o1", "anna"); late.status != 409 || late.body["type"] != "urn:farandole:gateway:voided" {
		t.Fatalf("%+v", late)
	}
	books := c.books()
	if line := books[0].(map[string]any); len(books) != 1 || line["refunded"] != 2500.0 || line["status"] != "refunded" || line["order_id"] != "o1" {
		t.Fatalf("%+v", books)
	}
}

func TestVoidBlocksALateCharge(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	if v := c.void("o1"); v.status != 201 || v.body["amount"] != 0.0 || v.body["refund_id"] != "" || v.body["currency"] != "" {
		t.Fatalf("%+v", v)
	}
	if late := c.charge("o1", "anna"); late.status != 409 {
		t.Fatalf("%+v", late)
	}
	if n := len(c.books()); n != 0 {
		t.Fatalf("%d charges", n)
	}
}

// However a charge and its void meet, nothing is kept.
func TestChargeRacingVoid(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	var wg sync.WaitGroup
	for i := range 25 {
		order := fmt.Sprint("o", i)
		wg.Go(func() { c.charge(order, "anna") })
		wg.Go(func() { c.void(order) })
	}
	wg.Wait()
	for _, line := range c.books() {
		if l := line.(map[string]any); l["refunded"] != l["amount"] {
			t.Errorf("kept: %v", l)
		}
	}
}

func TestFiftyAtOnceAreOneCharge(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, filepath.Join(t.TempDir(), "books"))
	var wg sync.WaitGroup
	replies := make([]reply, 50)
	for i := range replies {
		wg.Go(func() { replies[i] = c.charge("o1", "anna") })
	}
	wg.Wait()
	made := 0
	for _, r := range replies {
		if r.status != 201 || r.body["charge_id"] != replies[0].body["charge_id"] {
			t.Fatalf("%+v", r)
		}
		if !r.replayed {
			made++
		}
	}
	if n := len(c.books()); made != 1 || n != 1 {
		t.Fatalf("made %d, in the books %d", made, n)
	}
}

func TestBooksSurviveARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "books")
	c, g := newClient(t, path)
	first := c.charge("o1", "anna")
	c.charge("o2", "decline-anna")
	c.charge("o3", "anna")
	c.void("o3")
	c.void("o4")
	want := fmt.Sprint(c.books())
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	c, _ = newClient(t, path)
	if got := fmt.Sprint(c.books()); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if r := c.charge("o1", "anna"); !r.replayed || r.body["charge_id"] != first.body["charge_id"] {
		t.Fatalf("%+v", r)
	}
	if r := c.charge("o2", "decline-anna"); r.status != 402 || !r.replayed {
		t.Fatalf("%+v", r)
	}
	for _, order := range []string{"o3", "o4"} {
		if r := c.charge(order, "anna"); r.status != 409 {
			t.Fatalf("%s: %+v", order, r)
		}
	}
}

func TestClosedBooksTakeNoCharge(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", filepath.Join(t.TempDir(), "books")} {
		c, g := newClient(t, path)
		for range 2 {
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if r := c.charge("o1", "anna"); r.status != 500 || len(c.books()) != 0 {
			t.Fatalf("%q: %+v", path, r)
		}
	}
}

func TestTornLastLineIsCutOff(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "books")
	c, g := newClient(t, path)
	c.charge("o1", "anna")
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{1, 10, len(whole) - 1} {
		torn := append(bytes.Clone(whole), whole[:len(whole)-cut]...)
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		g, err := gateway.New(gateway.Config{Path: path, Logger: zerolog.New(&log)})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(left, whole) || !strings.Contains(log.String(), "torn") {
			t.Fatalf("left %q, logged %q", left, log.String())
		}
	}
}

func TestCorruptJournalIsRefused(t *testing.T) {
	t.Parallel()
	const charge = `{"kind":"charge","key":"k","order_id":"o","customer_id":"a","amount":1,"currency":"EUR","id":"ch"}` + "\n"
	for name, text := range map[string]string{
		"not JSON in the middle": "{\n" + charge,
		"whole line of nonsense": charge + "\x00\x00\n",
		"unknown kind":           `{"kind":"gift","key":"k","order_id":"o"}` + "\n",
		"charged twice":          charge + charge,
		"charge without id":      `{"kind":"charge","key":"k","order_id":"o"}` + "\n",
		"void without refund":    charge + `{"kind":"void","key":"k","order_id":"o"}` + "\n",
		"void of another order":  charge + `{"kind":"void","key":"k","order_id":"p","id":"re"}` + "\n",
		"no key":                 `{"kind":"void","order_id":"o"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "books")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := gateway.New(gateway.Config{Path: path}); !errors.Is(err, gateway.ErrCorrupt) || !strings.Contains(err.Error(), "line ") {
				t.Fatalf("error %v", err)
			}
			if left, err := os.ReadFile(path); err != nil || string(left) != text {
				t.Fatalf("changed to %q (%v)", left, err)
			}
		})
	}
}

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	for _, tc := range []struct {
		name, method, path, key, body string
		want                          int
	}{
		{"no key", "POST", "/charges", "", chargeBody("o", "a", 1), 400},
		{"long key", "POST", "/charges", strings.Repeat("k", 600), chargeBody("o", "a", 1), 400},
		{"no JSON", "POST", "/charges", "k", "{", 400},
		{"no order", "POST", "/charges", "k", chargeBody("", "a", 1), 400},
		{"no customer", "POST", "/charges", "k", chargeBody("o", "", 1), 400},
		{"negative", "POST", "/charges", "k", chargeBody("o", "a", -1), 400},
		{"no currency", "POST", "/charges", "k", `{"order_id":"o","customer_id":"a","amount":1}`, 400},
		{"too large", "POST", "/charges", "k", strings.Repeat(" ", 70<<10), 413},
		{"void without charge", "POST", "/voids", "k", `{"order_id":"o"}`, 400},
		{"void without order", "POST", "/voids", "k", `{"charge_key":"o"}`, 400},
		{"unknown mode", "PUT", "/faults", "", `{"mode":"odd"}`, 400},
		{"rate above 1", "PUT", "/faults", "", `{"mode":"flaky","rate":1.5}`, 400},
		{"negative delay", "PUT", "/faults", "", `{"mode":"slow","delay_ms":-1}`, 400},
		{"faults", "PUT", "/faults", "", `{"mode":"flaky","rate":0}`, 200},
	} {
		if r := call(t.Context(), t, c.http, tc.method, c.url+tc.path, tc.key, tc.body); r.status != tc.want {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	if n := len(c.books()); n != 0 {
		t.Fatalf("%d charges", n)
	}
}

// The charge is made although the client does not wait for the answer, and
// its next try gets the answer at once.
func TestClientIsLessPatientThanTheGateway(t *testing.T) {
	t.Parallel()
	c, g := newClient(t, "")
	if err := g.SetFaults(gateway.Faults{Mode: gateway.ModeSlow, DelayMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	heard := make(chan reply, 1)
	go func() {
		heard <- call(ctx, t, c.http, http.MethodPost, c.url+"/charges", "charge-o1", chargeBody("o1", "anna", 2500))
	}()
	bustest.Eventually(t, time.Minute, func() bool { return len(c.books()) == 1 })
	hangUp()
	if r := <-heard; r.status != 0 {
		t.Fatalf("%+v", r)
	}
	if r := c.charge("o1", "anna"); r.status != 201 || !r.replayed {
		t.Fatalf("%+v", r)
	}
	if n := len(c.books()); n != 1 {
		t.Fatalf("%d charges", n)
	}
}
