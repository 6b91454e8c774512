package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// split is a system whose payment service runs in processes of its own, so
// that they can be hurt one by one. The rest is one process.
type split struct {
	shop
	t       testing.TB
	server  *bustest.TestServer
	nats    string // URL
	orders  string // order's database
	gateway string // URL
	books   string // URL of the gateway's books and faults
}

// newSplit starts a server and the rest; flags are added to the rest's command line.
func newSplit(t testing.TB, flags ...string) *split {
	t.Helper()
	port, admin, store := freePort(t), freePort(t), t.TempDir()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	s := &split{
		shop: shop{url: localURL(port)}, t: t,
		server:  server,
		nats:    server.URL(),
		orders:  filepath.Join(store, "order.db"),
		gateway: localURL(port) + "/gateway",
		books:   localURL(admin) + "/gateway",
	}
	start(t, "rest", append([]string{
		"serve", "order", "inventory", "gateway", "--server", s.nats, "--store", store,
		"--http", fmt.Sprintf("127.0.0.1:%d", port), "--admin", fmt.Sprintf("127.0.0.1:%d", admin),
	}, flags...)...).ready(s.url)
	return s
}

// payment starts a payment process and waits until it is ready.
func (s *split) payment(name string, flags ...string) *process {
	s.t.Helper()
	return s.paymentOf(binary, name, flags...)
}

// paymentOf is payment with another program.
func (s *split) paymentOf(program, name string, flags ...string) *process {
	s.t.Helper()
	port := freePort(s.t)
	p := startProgram(s.t, program, name, append([]string{
		"serve", "payment", "--server", s.nats, "--gateway-url", s.gateway,
		"--http", fmt.Sprintf("127.0.0.1:%d", port), "--log-level", "info",
	}, flags...)...)
	p.ready(localURL(port))
	return p
}

// setGateway tells the payment gateway what is wrong with it.
func (s *split) setGateway(faults string) {
	s.t.Helper()
	if _, err := do(s.t.Context(), http.MethodPut, s.books+"/faults", nil, []byte(faults)); err != nil {
		s.t.Fatal(err)
	}
}

// charges counts an order's charges in the gateway's books.
func (s *split) charges(order string) (int, error) {
	answer, err := get(s.t.Context(), s.books+"/books")
	if err != nil {
		return 0, err
	}
	var books struct {
		Charges []struct {
			OrderID string `json:"order_id"`
		}
	}
	if err := json.Unmarshal(answer, &books); err != nil {
		return 0, err
	}
	n := 0
	for _, c := range books.Charges {
		if c.OrderID == order {
			n++
		}
	}
	return n, nil
}

// awaitCharge waits until the order is charged.
func (s *split) awaitCharge(order string) {
	s.t.Helper()
	bustest.Eventually(s.t, patience, func() error {
		n, err := s.charges(order)
		if err == nil && n == 0 {
			err = fmt.Errorf("order %s is not charged", order)
		}
		return err
	})
}

// awaitLog waits until a process has logged text.
func awaitLog(t testing.TB, p *process, text string) {
	t.Helper()
	bustest.Eventually(t, patience, func() error {
		if !strings.Contains(p.stderr.String(), text) {
			return fmt.Errorf("%s has not logged %q", p.name, text)
		}
		return nil
	})
}
