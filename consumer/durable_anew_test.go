package consumer_test

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// lines is a log that tests read.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// with returns the lines that hold text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestDurableMadeAnewStartsWhereTheLedgersMemoryDoes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const retention = 8 * time.Second // longer than a slow machine takes from one durable to the next
	s.kind = func(b *bus.Bus) (ledger, error) { return dedup.NewKV(b, dedup.Config{Retention: retention}) }
	runs, log := new(tally), new(lines)
	cfg := brief()
	cfg.Retry.MaxAttempts = 1
	cfg.Logger = zerolog.New(log)
	first := s.publishN(5)
	p := s.prepare(cfg, counting(runs), nil)
	p.run()
	bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 5 })
	if told := log.with("ledger_remembers"); len(told) != 1 || !strings.Contains(told[0], `"8s"`) || !strings.Contains(told[0], "for ever") {
		t.Errorf("told at start: %q, want what the stream keeps and what the ledger remembers", told)
	}
	bustest.Eventually(t, soon, func() bool { // the ledger has forgotten them all
		m := s.mark("payment", event.EventKeyOf(first[4]))
		return m.State == ""
	})
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	second := s.publish(draft("new"))
	if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
		t.Fatal(err)
	}
	s.start(cfg, counting(runs), nil)
	bustest.Eventually(t, soon, func() bool { return runs.of("new") == 1 })
	s.settled("payment")
	runs.wantOnce(t, slices.Concat(first, second))
	told := log.with("made anew")
	if len(told) != 1 || !strings.Contains(told[0], s.bus.Names().TypeFilter(placed.Type())+`":5`) || !strings.Contains(told[0], `"retention":"8s"`) {
		t.Errorf("told of the durable: %q, want the retention and 5 events left out", told)
	}
}

func TestDroppedTypeIsGoneForGood(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	runs := new(tally)
	v2 := s.prepare(brief(), version(runs, true), nil)
	v2.run()
	s.publish(draft("o-1"))
	bustest.Eventually(t, soon, func() bool { return runs.of("o-1") == 1 })
	if err := v2.stop(); err != nil {
		t.Fatal(err)
	}
	v1 := s.start(brief(), version(runs, false), nil)
	s.publish(reservation("r-1"))
	bustest.Eventually(t, soon, func() bool { return v1.Stats().Released > 0 })
	d := consumer.Drop{Consumer: "payment", Types: []event.Type{reserved.Type()}}
	plan, err := d.Plan(t.Context(), s.bus)
	if err != nil || len(plan) != 1 || plan[0].Pending != 1 {
		t.Fatalf("Plan = %+v, %v; want one pending event", plan, err)
	}
	if err := d.Apply(t.Context(), s.bus); err != nil {
		t.Fatal(err)
	}
	// What was on its way is given up, and a version that handles the type gets what comes later.
	bustest.Eventually(t, soon, func() bool { return v1.Stats().Dropped == 1 && v1.Health() == nil })
	s.start(brief(), version(runs, true), nil)
	s.publish(reservation("r-2"))
	bustest.Eventually(t, soon, func() bool { return runs.of("r-2") == 1 })
	s.caughtUp()
	s.settled("payment")
	if runs.of("r-1") > 0 {
		t.Error("an event that was dropped took effect")
	}
}
