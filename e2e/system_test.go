package e2e_test

import (
	"fmt"
	"path/filepath"
	"testing"
)

// system is "serve all --embedded": everything in one process, which can be
// ended in any way and started again with the same data and ports.
type system struct {
	*process
	shop
	t      testing.TB
	nats   string // URL
	orders string // order's database
	books  string // URL of the gateway's books
	args   []string
}

// newSystem returns a system with a store of its own; flags are added to its
// command line. It does not run yet.
func newSystem(t testing.TB, flags ...string) *system {
	t.Helper()
	httpPort, adminPort, natsPort, store := freePort(t), freePort(t), freePort(t), t.TempDir()
	return &system{
		shop:   shop{url: localURL(httpPort)},
		t:      t,
		nats:   fmt.Sprintf("nats://127.0.0.1:%d", natsPort),
		orders: filepath.Join(store, "order.db"),
		books:  localURL(adminPort) + "/gateway",
		args: append([]string{
			"serve", "all", "--embedded", "--store", store,
			"--nats-port", fmt.Sprint(natsPort), "--http", fmt.Sprintf("127.0.0.1:%d", httpPort), "--admin", fmt.Sprintf("127.0.0.1:%d", adminPort),
		}, flags...),
	}
}

// start starts the system and does not wait for it.
func (s *system) start() {
	s.t.Helper()
	s.process = start(s.t, "system", s.args...)
}

// startReady starts the system and waits until it is ready.
func (s *system) startReady() {
	s.t.Helper()
	s.start()
	s.ready(s.url)
}
