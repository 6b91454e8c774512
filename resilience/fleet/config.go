package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/resilience"
)

// Config says which breaker is shared, and by whom. Consumer and Breaker are required.
type Config struct {
	// Consumer is whose events need the dependency. Required.
	Consumer event.Consumer
	// Breaker is this process's own, which decides when to open, for how long, and with
	// how many probes. Its name is that of the shared breaker, [a-z][a-z0-9-]{0,31}. Required.
	Breaker *resilience.Breaker
	// Ramp is how long it takes from the close until nothing bounds the handlers any
	// more. They begin with as many at once as there are probes, and double. Defaults to 2 s.
	Ramp time.Duration
	// Logger gets a line for each change that is shared. Defaults to the bus's.
	Logger zerolog.Logger
}

const defaultRamp = 2 * time.Second

func (c Config) withDefaults() Config {
	c.Ramp = cmp.Or(c.Ramp, defaultRamp)
	return c
}

func (c Config) validate() error {
	errs := []error{c.Consumer.Validate()}
	switch {
	case c.Breaker == nil:
		errs = append(errs, fmt.Errorf("%w: Breaker is required", ErrConfig))
	case event.Consumer(c.Breaker.Name()).Validate() != nil:
		errs = append(errs, fmt.Errorf("%w: breaker %q: want a name [a-z][a-z0-9-]{0,31}", ErrConfig, c.Breaker.Name()))
	}
	if c.Ramp < 0 {
		errs = append(errs, fmt.Errorf("%w: Ramp %v: want no negative time", ErrConfig, c.Ramp))
	}
	return errors.Join(errs...)
}
