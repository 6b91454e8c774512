package gateway_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/farandole/farandole/services/payment/gateway"
)

func TestFlakyCustomerFailsTwiceAKey(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	for _, order := range []string{"o1", "o2"} {
		got := []int{c.charge(order, "flaky-anna").status, c.charge(order, "flaky-anna").status, c.charge(order, "flaky-anna").status}
		if fmt.Sprint(got) != "[500 503 201]" {
			t.Fatalf("%s: %v", order, got)
		}
	}
}

func TestSlowCustomerTakesTwoSeconds(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, "")
	start := time.Now()
	if r := c.charge("o1", "slow-anna"); r.status != 201 || time.Since(start) < 2*time.Second {
		t.Fatalf("%v: %+v", time.Since(start), r)
	}
}

func TestDown(t *testing.T) {
	t.Parallel()
	c, g := newClient(t, "")
	if err := g.SetFaults(gateway.Faults{Mode: gateway.ModeDown}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []reply{c.charge("o1", "anna"), c.void("o1")} {
		if r.status != 503 || r.header.Get("Retry-After") != "1" {
			t.Fatalf("%+v", r)
		}
	}
	r := call(t.Context(), t, c.http, http.MethodPut, c.url+"/faults", "", `{"mode":"ok"}`)
	if r.status != 200 || r.body["mode"] != "ok" {
		t.Fatalf("%+v", r)
	}
	if r := c.charge("o1", "anna"); r.status != 201 {
		t.Fatalf("%+v", r)
	}
}

// Every way to fail occurs, retries converge even at rate 1, and the same seed
// gives the same story.
func TestFlakyConvergesAndRepeats(t *testing.T) {
	t.Parallel()
	const orders = 30
	story := func(seed uint64, rate float64) (told string, seen map[int]int) {
		c, g := newClient(t, "")
		if err := g.SetFaults(gateway.Faults{Mode: gateway.ModeFlaky, Rate: rate, Seed: seed}); err != nil {
			t.Fatal(err)
		}
		seen = map[int]int{}
		for i := range orders {
			order, customer := fmt.Sprint("o", i), "anna"
			if i%3 == 0 {
				customer = "flaky-anna"
			}
			for try := 1; ; try++ {
				status := c.charge(order, customer).status
				told += fmt.Sprint(status, " ")
				seen[status]++
				if status == 201 {
					break
				}
				if try > 3 {
					t.Fatalf("%s: failed %d times in a row", order, try)
				}
			}
		}
		if n := len(c.books()); n != orders {
			t.Fatalf("%d charges", n)
		}
		return told, seen
	}
	first, seen := story(7, 1)
	for _, status := range []int{0, 500, 503} {
		if seen[status] == 0 {
			t.Errorf("status %d never occurred: %v", status, seen)
		}
	}
	if again, _ := story(7, 1); again != first {
		t.Errorf("seed 7 told\n%s, then\n%s", first, again)
	}
	if other, _ := story(8, 1); other == first {
		t.Error("seeds 7 and 8 told the same")
	}
	if _, seen := story(7, 0); seen[201] != orders || seen[500] != orders/3 {
		t.Errorf("at rate 0: %v", seen)
	}
}

// Which orders are declined follows from the seed, not from the tries.
func TestDeclineModeFollowsTheSeed(t *testing.T) {
	t.Parallel()
	story := func() (told string, declined int) {
		c, g := newClient(t, "")
		if err := g.SetFaults(gateway.Faults{Mode: gateway.ModeDecline, Rate: 0.4, Seed: 3}); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			status := c.charge(fmt.Sprint("o", i), "anna").status
			told += fmt.Sprint(status, " ")
			if status == 402 {
				declined++
			}
		}
		return told, declined
	}
	first, n := story()
	if again, _ := story(); again != first || n < 10 || n > 30 {
		t.Fatalf("%d of 50 declined:\n%s\n%s", n, first, again)
	}
}
