package replicas_test

import (
	"context"
	"errors"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/replicas"
	"github.com/farandole/farandole/resilience"
)

// A service runs this beside its consumer.
func Example() {
	share := func(ctx context.Context, b *bus.Bus) error {
		guard, err := resilience.New(resilience.Config{
			Name: "search", Rate: resilience.RateConfig{PerSecond: 100}, // of all processes together
		})
		if err != nil {
			return err
		}
		return replicas.Run(ctx, replicas.Config{
			Bus: b, Name: "search", Changed: func(n int) { guard.SetShare(1 / float64(n)) },
		})
	}
	if err := share(context.Background(), nil); errors.Is(err, replicas.ErrConfig) { // without a bus
		return
	}
}
