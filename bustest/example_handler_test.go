package bustest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
)

// A handler is tested without a server: what it returns is all it does.
func ExampleHandle() {
	type order struct {
		Amount int64 `json:"amount"`
	}
	placed := bus.Define[order]("order.placed.v1")
	captured := bus.Define[order]("payment.captured.v1")

	registry := consumer.NewRegistry()
	consumer.Handle(registry, placed, func(_ context.Context, e bus.Event, o order) (consumer.Step, error) {
		if o.Amount == 0 {
			return consumer.Step{}, consumer.Skip
		}
		return consumer.Emit(captured.New(bus.PartitionKey(e), o)), nil
	})

	test := func(t testing.TB) {
		t.Helper()
		event := bustest.Event(t, placed.New("ord-7f3a", order{Amount: 2500}))
		out, err := bustest.Handle(context.Background(), registry, "payment", event)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(out[0].Type(), bus.PartitionKey(out[0]), string(out[0].Data()))
	}
	test(&testing.T{})
	// Output: payment.captured.v1 ord-7f3a {"amount":2500}
}

func ExampleEvent() {
	placed := bus.Define[string]("order.placed.v1")
	event := bustest.Event(&testing.T{}, placed.New("ord-7f3a", "two widgets"))
	fmt.Println(event.ID(), event.Source(), event.Time().Year(), string(event.Data()))
	// Output: ord-7f3a /test 2026 "two widgets"
}
