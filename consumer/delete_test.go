package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestConsumerIsDeletedWithAllThatWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]kind{"durable": nil, "partitions": partitionKind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = kind
			r := handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				switch event.PartitionKey(e) {
				case "bad":
					return consumer.Step{}, consumer.Permanent(errFlaky)
				case "later":
					return consumer.Step{}, consumer.RetryAfter(errFlaky, time.Hour)
				}
				return consumer.Step{}, nil
			})
			p := s.start(config(), r, nil)
			s.publish(placed.New("ok", orderData{}), placed.New("bad", orderData{}), placed.New("later", orderData{}))
			deletion := consumer.Deletion{Consumer: "payment"}
			bustest.Eventually(t, soon, func() error {
				if _, err := deletion.Plan(t.Context(), s.bus); !errors.Is(err, consumer.ErrRunning) {
					return fmt.Errorf("plan while it runs: %w", err)
				}
				if stats := p.Stats(); stats.Handled != 1 || stats.Parked != 1 || stats.Retried != 1 {
					return fmt.Errorf("%+v", stats)
				}
				return nil
			})
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			s.publish(placed.New("new", orderData{}))
			if _, err := (consumer.Pause{Consumer: "payment", For: time.Hour, By: "test"}).Apply(t.Context(), s.bus); err != nil {
				t.Fatal(err)
			}
			var plan consumer.Remains
			bustest.Eventually(t, soon, func() (err error) { // who worked on it is seen for a moment
				plan, err = deletion.Plan(t.Context(), s.bus)
				return err
			})
			if plan.Pending != 1 || plan.Remembered == 0 || plan.Retries != 1 || plan.Timers != 0 || plan.Letters != 1 {
				t.Errorf("plan is %+v, want one event, one retry and one letter", plan)
			}
			if err := deletion.Apply(t.Context(), s.bus); err != nil {
				t.Fatal(err)
			}
			if _, err := deletion.Plan(t.Context(), s.bus); !errors.Is(err, consumer.ErrNoDurable) {
				t.Errorf("plan of what is gone: %v", err)
			}
			if all, err := consumer.List(t.Context(), s.bus); err != nil || len(all) > 0 {
				t.Errorf("listed are %+v: %v", all, err)
			}
			// Whoever takes the name begins like a new one: also with what had been handled.
			second := s.start(config(), r, nil)
			bustest.Eventually(t, soon, func() error {
				if stats := second.Stats(); stats.Handled != 2 || stats.Parked != 1 || stats.Retried != 1 {
					return fmt.Errorf("%+v", stats)
				}
				return nil
			})
		})
	}
}

func TestDeletionKeepsOtherConsumers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := counting(new(tally))
	var processes []*process
	for _, name := range []event.Consumer{"payment", "payment-2"} {
		cfg := config()
		cfg.Name = name
		processes = append(processes, s.start(cfg, r, nil))
	}
	e := s.publish(placed.New("ord-1", orderData{}))[0]
	for _, p := range processes {
		bustest.Eventually(t, soon, func() bool { return p.Stats().Handled == 1 })
	}
	if err := processes[0].stop(); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() error { return consumer.Deletion{Consumer: "payment"}.Apply(t.Context(), s.bus) })
	if mark := s.mark("payment-2", event.EventKeyOf(e)); mark.State != "done" {
		t.Errorf("the other consumer's mark is %+v", mark)
	}
	all, err := consumer.List(t.Context(), s.bus)
	if err != nil || len(all) != 1 || all[0].Consumer != "payment-2" || all[0].Workers != 1 {
		t.Errorf("listed are %+v: %v", all, err)
	}
}

// A paused process asks for no events, and is there all the same.
func TestDeletionIsRefusedWhileAPausedProcessRuns(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		processes := []*process{s.start(config(), counting(new(tally)), nil), s.start(config(), counting(new(tally)), nil)}
		workers := func(want int) consumer.Status {
			t.Helper()
			var status consumer.Status
			bustest.Eventually(t, soon, func() (err error) {
				if status, err = consumer.Look(t.Context(), s.bus, "payment"); err == nil && status.Workers != want {
					err = fmt.Errorf("%d processes are seen, want %d", status.Workers, want)
				}
				return err
			})
			return status
		}
		workers(2)
		if _, err := (consumer.Pause{Consumer: "payment", For: time.Hour, By: "test"}).Apply(t.Context(), s.bus); err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			bustest.Eventually(t, soon, func() bool { return consumer.Begins(p.Consumer) == 0 })
		}
		partitions := processes[0].ledger.Partitions() != nil
		bustest.Eventually(t, soon, func() error { // else that is what is seen
			status := workers(2)
			for _, d := range status.Durables {
				if d.Pulls > 0 && !partitions {
					return fmt.Errorf("%d pulls wait", d.Pulls)
				}
			}
			return nil
		})
		deletion := consumer.Deletion{Consumer: "payment"}
		says := "payment (processes: 2, paused by operator): stop them"
		if err := deletion.Apply(t.Context(), s.bus); !errors.Is(err, consumer.ErrRunning) || !strings.Contains(err.Error(), says) {
			t.Errorf("while two processes run, paused: %v", err)
		}
		for i, p := range processes {
			if err := p.stop(); err != nil {
				t.Fatal(err)
			}
			workers(1 - i)
		}
		if status := workers(0); !status.Unattended || len(status.Paused) != 1 {
			t.Errorf("stopped while paused: %+v", status)
		}
		bustest.Eventually(t, soon, func() error { return deletion.Apply(t.Context(), s.bus) })
	})
}
