package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// TestServicesStartWhileTheClusterForms starts services before the servers, which
// then come up one after another: nothing is there yet, and later everything is
// but its leaders. No process ends meanwhile. With FARANDOLE_LONG=1 there are 16
// services, and the cluster goes and comes four times more.
func TestServicesStartWhileTheClusterForms(t *testing.T) {
	t.Parallel()
	services, rounds := 4, 2
	if long() {
		services, rounds = 16, 6
	}
	f := newFleet(t, "")
	servers := bustest.StartCluster(t, 3)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	flags := []string{"--server", strings.Join(urls, ","), "--replicas", "3", "--wait", "2m", "--log-level", "info"}
	for round := range rounds {
		together(servers, func(s *bustest.TestServer) { s.Stop(t) })
		counted.outages.Add(1)
		for i := range services {
			if name := fmt.Sprintf("%d-%d", round, i); i%2 == 0 {
				f.add("payment-"+name, "payment", append(flags, "--gateway-url", "http://127.0.0.1:1")...)
			} else {
				f.add("inventory-"+name, "inventory", flags...)
			}
		}
		together(servers, func(s *bustest.TestServer) { s.Restart(t) })
		f.ready()
		if n := f.falls(); n > 0 {
			t.Fatalf("%d services ended at their start", n)
		}
		for _, m := range f.members {
			m.kill()
			if err := m.stderr.Close(); err != nil {
				t.Error(err)
			}
		}
		f.members = nil
	}
}

// together does something with all servers at once.
func together(servers []*bustest.TestServer, do func(*bustest.TestServer)) {
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() { do(s) })
	}
	all.Wait()
}

// TestServeStopsCleanlyDuringAnOutage tells all services to stop while NATS is away.
func TestServeStopsCleanlyDuringAnOutage(t *testing.T) {
	t.Parallel()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	port := freePort(t)
	p := start(t, "serve", "serve", "all", "--server", server.URL(), "--store", t.TempDir(), "--http", fmt.Sprintf("127.0.0.1:%d", port))
	p.ready(localURL(port))
	server.Stop(t)
	bustest.Eventually(t, patience, func() bool {
		_, err := get(t.Context(), localURL(port)+"/readyz")
		return err != nil
	})
	if took := p.stopCleanly(); took > grace {
		t.Errorf("it took %v, though nothing was under way", took)
	}
}
