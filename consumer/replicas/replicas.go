package replicas

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/event"
)

// ErrConfig is returned by [Run] when a setting is missing or wrong.
var ErrConfig = errors.New("replicas: configuration")

// Config says who counts whom. All fields but Logger are required.
type Config struct {
	Bus *bus.Bus
	// Name of what the processes share: all that run with one name count each other.
	// It has the form of a consumer's name.
	Name event.Consumer
	// Changed is called with the number of processes, this one included: with the
	// first one that is known, and with each other one after it. It must be quick.
	Changed func(n int)
	// Logger gets a line for each change, and for trouble. Defaults to the bus's.
	Logger zerolog.Logger
}

func (c Config) validate() error {
	if c.Bus == nil || c.Changed == nil {
		return fmt.Errorf("%w: Bus and Changed are required", ErrConfig)
	}
	if err := c.Name.Validate(); err != nil {
		return fmt.Errorf("%w: Name: %w", ErrConfig, err)
	}
	return nil
}

// keys keeps these processes apart from the members of a consumer with the name: no
// consumer's name has an equals sign.
const keys = "=replicas"

// Run counts this process among those of its name, and follows the others, until ctx
// ends. It uses the KV bucket of members. What goes wrong meanwhile is logged and tried
// again. The error matches [ErrConfig], or [bus.ErrClosed] if the bus is closed before
// ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	group := members.New(members.Config{Bus: cfg.Bus, Consumer: cfg.Name + keys, Partitions: 1, Logger: cfg.Bus.LoggerOr(cfg.Logger)})
	ended := make(chan error, 1)
	go func() { ended <- group.Run(ctx) }()
	for told := 0; ; {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("replicas: %s: %w", cfg.Name, err)
			}
			return nil
		case <-group.Changed():
			if n := len(group.View().Members); n != told {
				told = n
				cfg.Changed(n)
			}
		}
	}
}
