package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/farandole/farandole/event"
)

var (
	testPlaced = event.Define[int]("order.placed.v1")
	testPaid   = event.Define[int]("payment.captured.v1")
)

func nothing[T any](context.Context, event.Event, T) (Step, error) { return Step{}, nil }

func TestRegistryReportsItsMistakesTogether(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	Handle(r, testPlaced, nothing[int])
	Handle(r, testPlaced, nothing[int])
	Handle(r, event.Define[int]("Order Placed"), nothing[int])
	err := r.validate(false, false)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "two handlers for order.placed.v1") {
		t.Errorf("validate = %v, want it to tell the second handler", err)
	}
	if !errors.Is(err, event.ErrInvalidType) {
		t.Errorf("validate = %v, want it to tell the illegal type", err)
	}
}

func TestRegistryWithoutHandlersIsRefused(t *testing.T) {
	t.Parallel()
	if err := NewRegistry().validate(false, false); !errors.Is(err, ErrConfig) {
		t.Errorf("validate = %v, want ErrConfig", err)
	}
}

func TestRegistryTypesAreACopyInOrder(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	Handle(r, testPlaced, nothing[int])
	Handle(r, testPaid, nothing[int])
	got := r.Types()
	if want := []event.Type{"order.placed.v1", "payment.captured.v1"}; !slices.Equal(got, want) {
		t.Errorf("Types = %v, want %v", got, want)
	}
	got[0] = "x"
	if r.Types()[0] == "x" {
		t.Error("Types hands out the registry's own slice")
	}
}

func sealed(t *testing.T, typ, data string) event.Event {
	t.Helper()
	e, err := event.Draft{Type: event.Type(strings.TrimPrefix(typ, "com.acme.")), Key: "k", ContentType: event.ContentTypeJSON, Data: []byte(data)}.
		Seal(event.Identity{ID: "1", Source: "/t", TypePrefix: strings.TrimSuffix(typ, strings.TrimPrefix(typ, "com.acme."))})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestInvokePassesTheDecodedData(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	var got int
	Handle(r, testPlaced, func(_ context.Context, _ event.Event, n int) (Step, error) {
		got = n
		return Step{}, nil
	})
	for _, e := range []event.Event{sealed(t, "order.placed.v1", "7"), sealed(t, "com.acme.order.placed.v1", "7")} {
		got = 0
		if _, err := r.Invoke(t.Context(), event.Names{TypePrefix: "com.acme."}, e); err != nil || got != 7 {
			t.Errorf("Invoke %s = data %d, %v; want 7", e.Type(), got, err)
		}
	}
}

func TestInvokeRefusesWhatTheHandlerCannotTake(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	Handle(r, testPlaced, func(context.Context, event.Event, int) (Step, error) {
		t.Error("the handler was called")
		return Step{}, nil
	})
	_, err := r.Invoke(t.Context(), event.Names{}, sealed(t, "order.placed.v1", `"seven"`))
	if !errors.Is(err, event.ErrDecode) || decide(err, 1, testPolicy, 0).reason != event.ReasonDecode {
		t.Errorf("data that does not fit gives %v, want a decode error", err)
	}
	if _, err = r.Invoke(t.Context(), event.Names{}, sealed(t, "payment.captured.v1", "1")); !errors.Is(err, ErrConfig) {
		t.Errorf("a type without a handler gives %v, want ErrConfig", err)
	}
}

func TestHandleEventLeavesTheDataAlone(t *testing.T) {
	t.Parallel()
	r := NewRegistry()
	var got string
	HandleEvent(r, testPlaced.Type(), func(_ context.Context, e event.Event) (Step, error) {
		got = string(e.Data())
		return Step{}, nil
	})
	for _, data := range []string{`"seven"`, "no JSON\x00\xff", ""} {
		if _, err := r.Invoke(t.Context(), event.Names{}, sealed(t, "order.placed.v1", data)); err != nil || got != data {
			t.Errorf("Invoke = data %q, %v; want %q", got, err, data)
		}
	}
	Handle(r, testPlaced, nothing[int])
	if err := r.validate(false, false); !errors.Is(err, ErrConfig) {
		t.Errorf("validate = %v, want it to tell the second handler", err)
	}
}
