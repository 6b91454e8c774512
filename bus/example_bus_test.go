package bus_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

type order struct {
	Total int64 `json:"total"`
}

var placed = event.Define[order]("order.placed.v1")

// A service publishes from an HTTP handler in one line. A request that is sent again is
// the same event, because its key is the event's id.
func ExampleBus_Emit() {
	ctx := context.Background()
	// A server in this process. A service connects to one: bus.Connect(ctx, bus.Config{URL: ...}).
	b, stop, err := bustest.StartBus(ctx, bus.Config{Source: "/shop/orders"})
	if err != nil {
		log.Fatal(err)
	}
	place := func(w http.ResponseWriter, r *http.Request) {
		draft := placed.New("ord-7f3a", order{Total: 2500}).WithID(r.Header.Get("Idempotency-Key"))
		if _, err := b.Emit(r.Context(), draft); err != nil {
			http.Error(w, "not stored, or perhaps: send it again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}

	for range 2 {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", nil)
		r.Header.Set("Idempotency-Key", "request-1")
		place(w, r)
		fmt.Println(w.Code)
	}
	receipt, err := b.Emit(ctx, placed.New("ord-7f3a", order{Total: 2500}).WithID("request-1"))
	fmt.Printf("%+v %v\n", receipt, err)
	if err := stop(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 202
	// 202
	// {Stream:EVENTS Sequence:1 Duplicate:true} <nil>
}
