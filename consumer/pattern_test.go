package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

var cancelled = event.Define[orderData]("order.cancelled.v1")

// noting notes who has handled an event.
func noting(runs *tally, who string) func(context.Context, event.Event) (consumer.Step, error) {
	return func(_ context.Context, e event.Event) (consumer.Step, error) {
		runs.add(who + " " + e.Type())
		return consumer.Step{}, nil
	}
}

func TestPatternsTakeWhatHasNoHandlerOfItsOwn(t *testing.T) {
	t.Parallel()
	eachStoreKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var all, orders tally
		audit := consumer.NewRegistry()
		consumer.HandleEvent(audit, "*", noting(&all, "*"))
		consumer.HandleEvent(audit, "order.*", noting(&all, "order.*"))
		consumer.HandleEvent(audit, "order.placed.*", noting(&all, "order.placed.*"))
		cfg := config()
		cfg.Name = "audit"
		a := s.start(cfg, audit, nil)
		r := counting(&orders)
		consumer.HandleEvent(r, "order.*", noting(&orders, "order.*"))
		p := s.start(config(), r, nil)
		s.publish(draft("o-1"), cancelled.New("o-1", orderData{}), paid.New("o-1", orderData{}))
		a.handled(3)
		p.handled(2)
		s.settled("payment")
		for _, want := range []string{"order.placed.* order.placed.v1", "order.* order.cancelled.v1", "* payment.captured.v1"} {
			if all.of(want) != 1 {
				t.Errorf("audit: %v, want %s", all.all(), want)
			}
		}
		if orders.of("o-1") != 1 || orders.of("order.* order.cancelled.v1") != 1 || len(orders.all()) != 2 {
			t.Errorf("payment: %v", orders.all())
		}
	})
}

// eachStoreKind runs a test with each ledger that does not count by type.
func eachStoreKind(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		if s.open(s.bus).Partitions() == nil {
			test(t, s)
		}
	})
}

// What was handled under a type's own name is not handled again, and a letter comes back
// to the pattern's handler.
func TestTypesBecomeAPattern(t *testing.T) {
	t.Parallel()
	eachStoreKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), counting(&runs), nil)
		s.publish(draft("o-1"))
		p.handled(1)
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		s.publish(cancelled.New("o-1", orderData{}))
		var cured atomic.Bool
		r := consumer.NewRegistry()
		consumer.HandleEvent(r, "order.*", func(_ context.Context, e event.Event) (consumer.Step, error) {
			if e.Type() == string(cancelled.Type()) && !cured.Load() {
				return consumer.Step{}, consumer.Permanent(errFlaky)
			}
			runs.add(e.Type())
			return consumer.Step{}, nil
		})
		p = s.start(config(), r, nil)
		s.publish(draft("o-2"))
		p.handled(1)
		s.letter()
		cured.Store(true)
		s.replayAll()
		p.handled(2)
		s.settled("payment")
		if runs.of("o-1") != 1 || runs.of("order.placed.v1") != 1 || runs.of("order.cancelled.v1") != 1 {
			t.Errorf("%v, want each event once", runs.all())
		}
	})
}

func TestPatternsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	ledger, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	from := config()
	from.From = &consumer.Stream{Name: "GITHUB", Subjects: []string{"github.>"}}
	partitions := config()
	partitions.Ledger = ledger
	for name, tt := range map[string]struct {
		pattern event.Type
		cfg     consumer.Config
		want    string
	}{
		"part of a token":   {"order.pla*", config(), `want a pattern like "order.*"`},
		"in the middle":     {"*.placed.v1", config(), "invalid"},
		"too deep":          {"order.placed.v1.*", config(), `want a pattern like "order.*"`},
		"foreign stream":    {"order.*", from, "use HandleOthers"},
		"partition ledger":  {"*", partitions, "use another ledger"},
		"start of two ways": {"*", started(), "Start: Now and Since"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := consumer.NewRegistry()
			consumer.HandleEvent(r, tt.pattern, noting(new(tally), ""))
			if _, err := consumer.New(b, r, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, errFlaky) {
				t.Errorf("New = %v, want %q", err, tt.want)
			}
		})
	}
}

func started() consumer.Config {
	cfg := config()
	cfg.Start.Now, cfg.Start.Since = true, bustest.EventTime
	return cfg
}
