package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The whole system is killed again and again while customers order: every
// order ends, and the books are right.
func TestKillLosesNothing(t *testing.T) {
	t.Parallel()
	kills, orders := 4, 80
	if long() {
		kills, orders = 10, 300
	}
	const seed = 20
	t.Logf("seed %d: %d kills, %d orders", seed, kills, orders)
	random := rand.New(rand.NewPCG(seed, seed))
	s := newSystem(t, "--lease", lease)
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	c := newCustomers(ctx, s.shop, 8, "ada")
	placed := 0
	for life := range kills + 1 {
		s.start()
		for ; placed < orders*(life+1)/(kills+1); placed++ {
			c.keys <- fmt.Sprintf("kill-%d", placed)
		}
		if life < kills {
			<-time.After(time.Duration(random.IntN(800)) * time.Millisecond)
			s.kill()
			counted.kills.Add(1)
		}
	}
	s.ready(s.url)
	ids := c.done(t)
	counted.orders.Add(int64(len(ids)))
	s.awaitStatus(t, confirmed, ids...)
	auditOK(t, s.nats, s.orders, s.books, ids)
}

// The system is stopped in order while customers order: it ends in time with
// exit code 0, and goes on where it was.
func TestStopAndGoOn(t *testing.T) {
	t.Parallel()
	// What was given back when the server in the same process stopped comes again after the lease.
	s := newSystem(t, "--lease", lease)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := newCustomers(ctx, s.shop, 8, "ada")
	for stop := range 3 {
		s.startReady()
		for i := range 20 {
			c.keys <- fmt.Sprintf("stop-%d-%d", stop, i)
		}
		if took := s.stopCleanly(); took > grace {
			t.Errorf("stop took %s, want at most %s", took, grace)
		}
	}
	s.startReady()
	ids := c.done(t)
	s.awaitStatus(t, confirmed, ids...)
	auditOK(t, s.nats, s.orders, s.books, ids)
	s.stopCleanly()
}

// grace is the default of serve --grace, and a margin for what follows it.
const grace = 10*time.Second + 5*time.Second
