package bustest_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

var (
	reserved  = event.Define[order]("inventory.reserved.v1")
	rejected  = event.Define[order]("inventory.rejected.v1")
	refunded  = event.Define[order]("payment.refunded.v1")
	expired   = event.Define[order]("order.expired.v1")
	errBroken = errors.New("the gateway is down")
)

// emits handles an event by emitting another one of its key.
func emits(next event.Definition[order]) consumer.Handler[order] {
	return func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		return consumer.Emit(next.New(event.PartitionKey(e), o)), nil
	}
}

func payment() bustest.Service {
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, emits(paid))
	consumer.Handle(r, rejected, emits(refunded))
	return bustest.Service{Name: "payment", Registry: r}
}

// inventory has no stock for orders of more than 100.
func inventory() bustest.Service {
	r := consumer.NewRegistry()
	consumer.Handle(r, paid, func(ctx context.Context, e event.Event, o order) (consumer.Step, error) {
		if o.Amount > 100 {
			return emits(rejected)(ctx, e, o)
		}
		return emits(reserved)(ctx, e, o)
	})
	return bustest.Service{Name: "inventory", Registry: r}
}

func typesOf(events []event.Event) (types []string) {
	for _, e := range events {
		types = append(types, e.Type())
	}
	return types
}

func TestWorldRunsASagaAndItsCompensation(t *testing.T) {
	t.Parallel()
	for amount, want := range map[int64][]string{
		10:  {"order.placed.v1", "payment.captured.v1", "inventory.reserved.v1"},
		500: {"order.placed.v1", "payment.captured.v1", "inventory.rejected.v1", "payment.refunded.v1"},
	} {
		w := bustest.NewWorld(t, payment(), inventory())
		w.Publish(placed.New("ord-1", order{Amount: amount}))
		if got := typesOf(w.Events()); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", amount, got, want)
		}
		w.Send(w.Events()...) // each comes twice
		if got := w.Events(); len(got) != 2*len(want) {
			t.Errorf("%d: copies have taken effect: %v", amount, typesOf(got))
		}
		if !w.Now().Equal(bustest.EventTime) || len(w.Letters()) != 0 {
			t.Errorf("%v, %v", w.Now(), w.Letters())
		}
	}
}

// failing fails so many times.
func failing(times int, err error, runs *[]string) bustest.Service {
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, _ order) (consumer.Step, error) {
		*runs = append(*runs, e.ID())
		if times > 0 && e.ID() == "a" {
			times--
			return consumer.Step{}, err
		}
		return consumer.Step{}, nil
	})
	return bustest.Service{Name: "payment", Registry: r}
}

func TestWorldRetriesInVirtualTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times   int
		err     error
		runs    string
		letters string
		took    time.Duration
	}{
		"a failure holds its key":        {2, errBroken, "[a a a b]", "[]", 750 * time.Millisecond},
		"all attempts":                   {9, errBroken, "[a a a a a b]", "[exhausted 5]", 3750 * time.Millisecond},
		"permanent":                      {9, consumer.Permanent(errBroken), "[a b]", "[permanent 1]", 0},
		"retry after":                    {1, consumer.RetryAfter(errBroken, 5*time.Second), "[a a b]", "[]", 5 * time.Second},
		"a long retry gives the key up":  {1, consumer.RetryAfter(errBroken, time.Minute), "[a b a]", "[]", time.Minute},
		"yield gives the key up":         {1, consumer.Yield(errBroken, 0), "[a b a]", "[]", time.Second},
		"not yet spends no attempt":      {9, consumer.NotYet(errBroken, time.Second), "[a a a a a a a a a a b]", "[]", 9 * time.Second},
		"a handler that skips is done":   {1, consumer.Skip, "[a b]", "[]", 0},
		"an illegal event is permanent":  {1, event.ErrInvalidEvent, "[a b]", "[permanent 1]", 0},
		"what a permanent error wraps":   {1, fmt.Errorf("x: %w", consumer.Permanent(consumer.NotYet(errBroken, 1))), "[a b]", "[permanent 1]", 0},
		"retries of an attempt are full": {1, errBroken, "[a a b]", "[]", 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs []string
			w := bustest.NewWorld(t, failing(tt.times, tt.err, &runs))
			for _, id := range []string{"a", "b"} {
				d := placed.New("ord-1", order{})
				d.ID = id
				w.Publish(d)
			}
			w.Settle()
			letters := []string{}
			for _, l := range w.Letters() {
				letters = append(letters, fmt.Sprint(l.Reason, " ", l.Attempts))
			}
			if fmt.Sprint(runs) != tt.runs || fmt.Sprint(letters) != tt.letters || w.Now().Sub(bustest.EventTime) != tt.took {
				t.Errorf("runs %v, letters %v, took %v; want %v, %v, %v", runs, letters, w.Now().Sub(bustest.EventTime), tt.runs, tt.letters, tt.took)
			}
		})
	}
}

func TestWorldFiresTimersWhenTheirTimeHasCome(t *testing.T) {
	t.Parallel()
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		return consumer.Step{Timers: []consumer.Timer{{Name: "deadline", After: 15 * time.Minute, Event: expired.New(event.PartitionKey(e), o)}}}, nil
	})
	consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ order) (consumer.Step, error) {
		return consumer.Step{Cancel: []consumer.TimerID{{Name: "deadline", Key: event.PartitionKey(e)}}}, nil
	})
	w := bustest.NewWorld(t, bustest.Service{Name: "order", Registry: r})
	w.Publish(placed.New("ord-1", order{}), placed.New("ord-2", order{}))
	w.Advance(14 * time.Minute)
	w.Publish(paid.New("ord-1", order{}))
	if n := len(w.Timers()); n != 1 || len(w.Events(expired.Type())) != 0 {
		t.Fatalf("%d timers, %v", n, typesOf(w.Events()))
	}
	w.Advance(time.Hour)
	got := w.Events(expired.Type())
	if len(got) != 1 || event.PartitionKey(got[0]) != "ord-2" || !got[0].Time().Equal(bustest.EventTime.Add(15*time.Minute)) {
		t.Errorf("%v", got)
	}
	if now := bustest.EventTime.Add(14*time.Minute + time.Hour); !w.Now().Equal(now) {
		t.Errorf("it is %v, want %v", w.Now(), now)
	}
}

// A handler's transaction is committed when it succeeds, and rolled back when it fails.
func TestWorldHandsTransactionsToHandlers(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE invoices (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	fails := 1
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(ctx context.Context, e event.Event, _ order) (consumer.Step, error) {
		tx, err := outbox.Tx(ctx)
		if err != nil {
			return consumer.Step{}, err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES ($1)", e.ID()); err != nil {
			return consumer.Step{}, err
		}
		if fails--; fails >= 0 {
			return consumer.Step{}, errBroken
		}
		return consumer.Step{}, nil
	})
	w := bustest.NewWorld(t, bustest.Service{Name: "invoices", Registry: r, DB: db})
	w.Publish(placed.New("ord-1", order{}))
	w.Settle()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM invoices").Scan(&n); err != nil || n != 1 || fails != -1 {
		t.Errorf("%d invoices after %d runs, %v; want 1 after 2", n, 1-fails, err)
	}
}

func TestStartBusNeedsNoTest(t *testing.T) {
	t.Parallel()
	b, stop, err := bustest.StartBus(t.Context(), bus.Config{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.Seal(placed.New("ord-1", order{}))
	if err == nil {
		_, err = b.Publish(t.Context(), e)
	}
	if err := errors.Join(err, stop()); err != nil {
		t.Error(err)
	}
}
