package dlq_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func ExampleLetter() {
	failed := &nats.Msg{
		Subject: "events.order.placed.v1.ord-1",
		Header:  nats.Header{"ce-id": {"1"}, "ce-source": {"/order"}, "Nats-TTL": {"5s"}},
		Data:    []byte(`{"amount":9007199254740993}`),
	}
	at := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	letter, err := dlq.Letter(event.Names{}, failed, dlq.Origin{Stream: "EVENTS", Sequence: 7, Time: at}, dlq.Story{
		Consumer: "payment", Reason: event.ReasonExhausted, Key: event.NewEventKey("/order", "1"), At: at,
		Attempts: []event.Attempt{{Number: 1, At: at, Class: "timeout", Error: "gateway\r\ntimed out"}},
	}, 1<<20)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(letter.Subject)
	fmt.Println(letter.Header["dlq-error"], letter.Header["dlq-original-Nats-TTL"])
	fmt.Println(string(letter.Data))
	// Output:
	// dlq.payment.exhausted.wi5u4uulccv2spuhksaopkcqyow6to6r
	// [gateway%0D%0Atimed%20out] [5s]
	// {"amount":9007199254740993}
}

func ExampleQueue_Replay() {
	replay := func(ctx context.Context, q *dlq.Queue) error {
		timeouts := dlq.Selection{Filter: dlq.Filter{Consumer: "payment", Class: "timeout"}}
		summary, err := q.Replay(ctx, timeouts, dlq.ReplayOptions{Rate: 50}, func(r dlq.Result) {
			fmt.Println(r.ID, r.Status, r.Message)
		})
		fmt.Println(summary.Counts[dlq.Replayed], "of", summary.Selected)
		return err
	}
	_ = replay
}
