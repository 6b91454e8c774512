package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	breakers "github.com/farandole/farandole/resilience/fleet"
)

// outage is a system whose payment processes share the breaker of a gateway that is down.
type outage struct {
	*split
	bus      *bus.Bus
	payments []*process
	ids      []string
}

// onceOnly allows a single attempt: whatever spends one during an outage makes a dead letter.
var onceOnly = []string{"--max-attempts", "1", "--lease", lease}

// newOutage starts payment processes, by name and program.
func newOutage(t *testing.T, flags []string, programs ...string) *outage {
	t.Helper()
	o := &outage{split: newSplit(t)}
	for i, program := range programs {
		o.payments = append(o.payments, o.paymentOf(program, fmt.Sprint("payment ", i), flags...))
	}
	var err error
	if o.bus, err = bus.Connect(t.Context(), bus.Config{URL: o.nats}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.bus.Close(); err != nil {
			t.Error(err)
		}
	})
	o.breaks("closed", nil)
	return o
}

// begin has the gateway be down, and orders wait for it, without a call that fails
// before the breaker is open: it is opened by hand, and goes on by itself after a second.
func (o *outage) begin(orders int) {
	o.t.Helper()
	if got := run(o.t, "breaker", "open", "gateway", "--for", "1s", "--reason", "the test", "--server", o.nats); got.code != 0 {
		o.t.Fatalf("breaker open: %+v", got)
	}
	o.setGateway(`{"mode":"down"}`)
	o.order(orders)
}

func (o *outage) order(n int) {
	o.t.Helper()
	for range n {
		o.ids = append(o.ids, o.mustPlace(o.t, fmt.Sprint("order-", len(o.ids)), "ada"))
	}
}

// breaks waits until the breaker has a state, and more if that is not nil.
func (o *outage) breaks(state string, more func(breakers.Status) bool) (s breakers.Status) {
	o.t.Helper()
	bustest.Eventually(o.t, patience, func() error {
		all, err := breakers.List(o.t.Context(), o.bus)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].State != state || more != nil && !more(all[0]) {
			return fmt.Errorf("breakers are %+v, want one that is %s", all, state)
		}
		s = all[0]
		return nil
	})
	return s
}

// opened waits until a failed probe has opened the breaker.
func (o *outage) opened() breakers.Status {
	o.t.Helper()
	return o.breaks("open", func(s breakers.Status) bool { return !s.Forced })
}

// whose is the process that the breaker knows by this id: it has logged its changes.
func (o *outage) whose(id string) (found *process) {
	o.t.Helper()
	bustest.Eventually(o.t, patience, func() error {
		for _, p := range o.payments {
			if len(changes(p, fmt.Sprintf(`"by":%q`, id))) > 0 {
				found = p
				return nil
			}
		}
		return errors.New("no process is " + id)
	})
	return found
}

// changes are the log lines of the shared breaker's changes that a process has made.
func changes(p *process, with string) (lines []string) {
	for line := range strings.Lines(p.stderr.String()) {
		if strings.Contains(line, "breaker of the consumer has changed its state") && strings.Contains(line, with) {
			lines = append(lines, line)
		}
	}
	return lines
}

// end has the gateway work again, and waits until the fleet has found out by itself:
// every order is confirmed and charged once, and there is no dead letter.
func (o *outage) end() {
	o.t.Helper()
	o.setGateway(`{}`)
	o.awaitStatus(o.t, confirmed, o.ids...)
	o.breaks("closed", nil)
	auditOK(o.t, o.nats, o.orders, o.books, o.ids)
}

// eachLedger runs a test with processes that compete for events, and with partitions.
func eachLedger(t *testing.T, flags []string, test func(o *outage)) {
	t.Helper()
	for _, ledger := range []string{"kv", "partition"} {
		t.Run(ledger, func(t *testing.T) {
			t.Parallel()
			test(newOutage(t, append([]string{"--ledger", ledger}, flags...), binary, binary))
		})
	}
}

// The process that opened the breaker is killed while it is open: the other one resumes.
func TestBreaker_opener_is_killed(t *testing.T) {
	t.Parallel()
	eachLedger(t, onceOnly, func(o *outage) {
		o.begin(30)
		o.whose(o.opened().By).kill()
		counted.kills.Add(1)
		o.end()
	})
}

// The process that probes is killed in the middle of a probe: the other one probes.
func TestBreaker_prober_is_killed(t *testing.T) {
	t.Parallel()
	// So long a lease gives a probe that hangs the time to be killed.
	eachLedger(t, []string{"--max-attempts", "1", "--lease", "6s"}, func(o *outage) {
		o.begin(30)
		o.opened()
		o.setGateway(`{"mode":"slow","delay_ms":60000}`)
		probing := o.breaks("half-open", nil)
		o.whose(probing.Prober).kill()
		counted.kills.Add(1)
		o.end()
		if by := o.breaks("closed", nil).By; by == probing.Prober {
			o.t.Errorf("closed by %s, which is dead", by)
		}
	})
}

// NATS restarts while the breaker is open.
func TestBreaker_NATS_restarts(t *testing.T) {
	t.Parallel()
	o := newOutage(t, onceOnly, binary, binary)
	o.begin(30)
	o.opened()
	o.server.Stop(t)
	counted.outages.Add(1)
	o.server.Restart(t)
	o.opened() // what is shared has outlived the restart
	o.end()
	for _, p := range o.payments {
		p.stopCleanly()
	}
}

// Both processes find out at once that the gateway is down: that is one opening, and
// only what failed before it are attempts.
func TestBreaker_two_open_at_once(t *testing.T) {
	t.Parallel()
	o := newOutage(t, []string{"--max-attempts", "30", "--lease", lease}, binary, binary)
	const leastCalls = 20 // of a process, until its breaker judges
	for round := 1; ; round++ {
		if got := run(t, "consumer", "pause", "payment", "--server", o.nats); got.code != 0 {
			t.Fatalf("pause: %+v", got)
		}
		o.setGateway(`{"mode":"down"}`)
		o.order(100)
		own := []int{o.tripped(0), o.tripped(1)}
		if got := run(t, "consumer", "resume", "payment", "--server", o.nats); got.code != 0 {
			t.Fatalf("resume: %+v", got)
		}
		o.opened()
		o.setGateway(`{}`)
		if s := o.breaks("closed", nil); s.Opened != uint64(round) {
			t.Errorf("opened %d times from closed in %d rounds", s.Opened, round)
		}
		attempts := 0
		for _, p := range o.payments {
			attempts += strings.Count(p.stderr.String(), "handler failed, will retry")
		}
		if most := round * len(o.payments) * (leastCalls - 1); attempts > most {
			t.Errorf("%d attempts in %d rounds, want at most %d", attempts, round, most)
		}
		if o.tripped(0) > own[0] && o.tripped(1) > own[1] {
			break
		}
		if round == 20 {
			t.Fatalf("in %d rounds the processes have not opened at once", round)
		}
	}
	o.end()
}

// tripped is how often the breaker of one process has found out for itself.
func (o *outage) tripped(i int) int {
	return strings.Count(o.payments[i].stderr.String(), `"event":"failure_rate"`)
}

// The clock of one process is a minute ahead of the other's and the server's. Both probe
// and open in their turn, and neither of them too early.
func TestBreaker_clock_is_wrong(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("compiles everything anew, for minutes: FARANDOLE_LONG=1")
	}
	o := newOutage(t, onceOnly, buildAhead(t), binary)
	o.begin(30)
	first := o.opened()
	o.breaks("open", func(s breakers.Status) bool {
		for _, p := range o.payments {
			if len(changes(p, `"state":"half-open"`)) == 0 || len(changes(p, `"state":"open"`)) == 0 {
				return false
			}
		}
		return s.At.After(first.At)
	})
	o.end()
	var open breakers.Changed
	err := follow.Read(t.Context(), o.bus, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		e, problem := m.Event()
		if problem != "" {
			return errors.New(problem)
		}
		var c breakers.Changed
		switch event.Type(e.Type()) {
		case breakers.Opened.Type():
			return e.DataAs(&open)
		case breakers.HalfOpened.Type():
			if err := e.DataAs(&c); err != nil {
				return err
			}
			if c.At.Before(open.Until) {
				t.Errorf("probed by %s at %v, although it was open until %v", c.By, c.At, open.Until)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range o.payments {
		p.stopCleanly()
	}
}

// buildAhead builds the program with a wall clock that is a minute ahead. Its monotonic
// clock is right: it is the date of that machine which is wrong.
func buildAhead(t *testing.T) string {
	t.Helper()
	const now = "sec, nsec, mono := runtimeNow()"
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), now) != 1 {
		t.Fatalf("%s reads the clock otherwise than by %q", source, now)
	}
	dir := t.TempDir()
	ahead, overlay, program := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "farandole")
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{source: ahead}})
	if err == nil {
		err = errors.Join(
			os.WriteFile(ahead, []byte(strings.Replace(string(text), now, now+"; sec += 60", 1)), 0o600),
			os.WriteFile(overlay, replaced, 0o600),
		)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program, "../cmd/farandole").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}
