package e2e_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// The NATS server freezes, as a machine without memory does: connections stay, and
// nobody answers. All services say that they are not ready, and go on by themselves; with
// FARANDOLE_LONG=1 twice.
func TestNATS_freezes(t *testing.T) {
	t.Parallel()
	f := onOneNode(t, "")
	nats, services := f.members[0], f.members[1:]
	var ids []string
	order := func(name string) {
		for i := range 10 {
			ids = append(ids, f.mustPlace(t, fmt.Sprint(name, "-", i), "ada"))
		}
	}
	rounds := 1
	if long() {
		rounds = 2
	}
	for round := range rounds {
		order(fmt.Sprint("before-", round))
		nats.signal(syscall.SIGSTOP)
		for _, m := range services {
			bustest.Eventually(t, patience, func() error {
				if _, err := get(t.Context(), m.url+"/readyz"); err == nil {
					return fmt.Errorf("%s says that it is ready", m.name)
				}
				return nil
			})
		}
		order(fmt.Sprint("frozen-", round)) // the outbox takes them
		nats.signal(syscall.SIGCONT)
		counted.outages.Add(1)
		// Customers go on: a relay sees by what it publishes that NATS is back. One that
		// has nothing to publish believes so after a minute.
		bustest.Eventually(t, patience, func() error {
			ids = append(ids, f.mustPlace(t, fmt.Sprint("back-", len(ids)), "ada"))
			for _, m := range services {
				if _, err := get(t.Context(), m.url+"/readyz"); err != nil {
					return fmt.Errorf("%s: %w", m.name, err)
				}
			}
			return nil
		})
		order(fmt.Sprint("after-", round))
		f.final(ids)
	}
	if n := f.falls(); n > 0 {
		t.Errorf("%d services ended by themselves", n)
	}
	auditOK(t, f.nats, f.orders, f.books, ids)
}
