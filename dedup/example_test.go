package dedup_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// What a consumer does with each delivery of an event.
func ExampleNewMemory() {
	emit := func(_ context.Context, out []*nats.Msg) error {
		for _, m := range out {
			fmt.Println("emitted", m.Subject)
		}
		return nil
	}
	ledger, err := dedup.NewMemory(dedup.MemoryConfig{}, emit)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	deliver := func() error {
		claim, err := ledger.Claim(ctx, dedup.Request{
			Consumer: "payment", Key: event.NewEventKey("/order", "1"), Lease: 15 * time.Second,
		})
		if err != nil {
			return err
		}
		fmt.Println(claim.Status)
		if claim.Status != dedup.Claimed {
			return nil
		}
		return ledger.Complete(ctx, claim, []*nats.Msg{{Subject: "events.payment.captured.v1.1"}})
	}
	for range 2 {
		if err := deliver(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// claimed
	// emitted events.payment.captured.v1.1
	// done
}
