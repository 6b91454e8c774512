package bustest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

type order struct {
	Amount int64 `json:"amount"`
}

var (
	placed = event.Define[order]("order.placed.v1")
	paid   = event.Define[order]("payment.captured.v1")
)

// handling is a registry with one handler, for orders.
func handling(h consumer.Handler[order]) *consumer.Registry {
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, h)
	return r
}

func TestHandleReturnsTheSameEventsEachTime(t *testing.T) {
	t.Parallel()
	r := handling(func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		return consumer.Emit(paid.New(event.PartitionKey(e), o), paid.New("other", o)), nil
	})
	d := placed.New("ord-1", order{Amount: 2500})
	d.Correlation = "saga-7"
	e := bustest.Event(t, d)

	first, err := bustest.Handle(t.Context(), r, "payment", e)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bustest.Handle(t.Context(), r, "payment", e)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Events) != 2 || len(again.Events) != 2 {
		t.Fatalf("%d and %d events, want 2", len(first.Events), len(again.Events))
	}
	for i := range first.Events {
		if first.Events[i].String() != again.Events[i].String() {
			t.Errorf("a rerun emits\n%s, before it was\n%s", again.Events[i], first.Events[i])
		}
		if got := event.Extension(first.Events[i], event.ExtCorrelation); got != "saga-7" {
			t.Errorf("correlation is %q, want the cause's", got)
		}
		if got := event.Extension(first.Events[i], event.ExtCausation); got != "ord-1" {
			t.Errorf("causation is %q, want the cause's id", got)
		}
	}
	if first.Events[0].ID() == first.Events[1].ID() {
		t.Error("two events of one step have one id")
	}
}

func TestHandleErrors(t *testing.T) {
	t.Parallel()
	e := bustest.Event(t, placed.New("ord-1", order{}))
	bad := bustest.Event(t, event.Draft{Type: placed.Type(), Key: "ord-1", ContentType: event.ContentTypeJSON, Data: []byte(`{"amount":"x"}`)})
	for name, tt := range map[string]struct {
		h    consumer.Handler[order]
		e    event.Event
		want error
	}{
		"panic": {func(context.Context, event.Event, order) (consumer.Step, error) { panic("boom") }, e, consumer.ErrPanic},
		"skip": {func(context.Context, event.Event, order) (consumer.Step, error) {
			return consumer.Emit(paid.New("k", order{})), consumer.Skip
		}, e, consumer.Skip},
		"data does not fit": {nil, bad, event.ErrDecode},
		"no handler":        {nil, bustest.Event(t, paid.New("k", order{})), consumer.ErrConfig},
		"emits no key": {func(context.Context, event.Event, order) (consumer.Step, error) {
			return consumer.Emit(paid.New("", order{})), nil
		}, e, event.ErrInvalidEvent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			effects, err := bustest.Handle(t.Context(), handling(tt.h), "payment", tt.e)
			if !errors.Is(err, tt.want) || effects.Events != nil {
				t.Errorf("Handle = %d events, %v; want no events, %v", len(effects.Events), err, tt.want)
			}
		})
	}
}

func TestHandleReturnsTimers(t *testing.T) {
	t.Parallel()
	due := event.Define[order]("order.deadline.v1")
	other := consumer.TimerID{Name: "reminder", Key: "ord-1"}
	r := handling(func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		return consumer.Step{
			Timers: []consumer.Timer{{Name: "deadline", After: time.Hour, Event: due.New(event.PartitionKey(e), o)}},
			Cancel: []consumer.TimerID{other},
		}, nil
	})
	e := bustest.Event(t, placed.New("ord-1", order{Amount: 2500}))
	first, err := bustest.Handle(t.Context(), r, "payment", e)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bustest.Handle(t.Context(), r, "payment", e)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Timers) != 1 || len(first.Cancelled) != 1 || first.Cancelled[0] != other {
		t.Fatalf("effects are %+v", first)
	}
	got := first.Timers[0]
	if got.Name != "deadline" || !got.Due.Equal(bustest.EventTime.Add(time.Hour)) || event.Extension(got.Event, event.ExtCausation) != "ord-1" {
		t.Errorf("timer is %+v", got)
	}
	if got.Event.String() != again.Timers[0].Event.String() {
		t.Errorf("a rerun sets\n%s, before it was\n%s", again.Timers[0].Event, got.Event)
	}
	never := handling(func(context.Context, event.Event, order) (consumer.Step, error) {
		return consumer.Step{Timers: []consumer.Timer{{Name: "deadline", Event: due.New("k", order{})}}}, nil
	})
	if _, err := bustest.Handle(t.Context(), never, "payment", e); !errors.Is(err, consumer.ErrTimer) {
		t.Errorf("a timer without a time: %v, want ErrTimer", err)
	}
}
