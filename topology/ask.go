package topology

import (
	"context"
	"errors"
	"fmt"

	"github.com/farandole/farandole/bus"
)

// ask is [bus.Bus.Ask]; an answer that is a refusal matches [ErrTopology], too.
func ask(ctx context.Context, b *bus.Bus, api string, f func(context.Context) error) error {
	err := b.Ask(ctx, api, f)
	if errors.Is(err, bus.ErrRefused) {
		return fmt.Errorf("%w: %w", ErrTopology, err)
	}
	return err
}
