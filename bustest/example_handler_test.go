package bustest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// A handler is tested without a server: what it returns is all it does.
func ExampleHandle() {
	type order struct {
		Amount int64 `json:"amount"`
	}
	placed := event.Define[order]("order.placed.v1")
	captured := event.Define[order]("payment.captured.v1")

	registry := consumer.NewRegistry()
	consumer.Handle(registry, placed, func(_ context.Context, e event.Event, o order) (consumer.Step, error) {
		if o.Amount == 0 {
			return consumer.Step{}, consumer.Skip
		}
		return consumer.Emit(captured.New(event.PartitionKey(e), o)), nil
	})

	test := func(t testing.TB) {
		t.Helper()
		e := bustest.Event(t, placed.New("ord-7f3a", order{Amount: 2500}))
		effects, err := bustest.Handle(context.Background(), registry, "payment", e)
		if err != nil {
			t.Fatal(err)
		}
		out := effects.Events[0]
		fmt.Println(out.Type(), event.PartitionKey(out), string(out.Data()))
	}
	test(&testing.T{})
	// Output: payment.captured.v1 ord-7f3a {"amount":2500}
}

func ExampleEvent() {
	placed := event.Define[string]("order.placed.v1")
	e := bustest.Event(&testing.T{}, placed.New("ord-7f3a", "two widgets"))
	fmt.Println(e.ID(), e.Source(), e.Time().Year(), string(e.Data()))
	// Output: ord-7f3a /test 2026 "two widgets"
}
