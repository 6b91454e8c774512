package hopbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
)

// Config are the choices of [Run].
type Config struct {
	// Events is how many wait when the run begins. Defaults to 20,000.
	Events int
	// Replicas of the stage's streams. Defaults to 1.
	Replicas int
	// Prefix of the stage. Defaults to a random one.
	Prefix string
}

func (c Config) withDefaults() Config {
	c.Events = cmp.Or(c.Events, 20_000)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Prefix = cmp.Or(c.Prefix, Prefix())
	return c
}

func (c Config) validate() error {
	if c.Events < 1 || c.Replicas < 1 {
		return fmt.Errorf("%w: Events %d, Replicas %d: want at least 1", ErrConfig, c.Events, c.Replicas)
	}
	return nil
}

// Runner turns all events that wait on a stage, n of them, into one outgoing
// event each, and returns when these are durable and those are acknowledged.
type Runner func(ctx context.Context, s *Stage, n int) error

// Result is what a run measured.
type Result struct {
	Events          int     `json:"events"`
	DataBytes       int     `json:"data_bytes"`
	Replicas        int     `json:"replicas"`
	PublishedPerSec float64 `json:"published_per_second"`
	HopsPerSec      float64 `json:"hops_per_second"`
	ElapsedMS       float64 `json:"elapsed_ms"` // of the hops
	Server          string  `json:"server"`     // its version
}

// Run measures one run on a new stage, which is gone when it returns. Errors
// match [ErrConfig], [ErrExists], [ErrUnverified], or are the runner's or those
// of [Open].
func Run(ctx context.Context, connect bus.Config, cfg Config, run Runner) (r Result, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return Result{}, err
	}
	s, err := Open(ctx, connect, cfg.Prefix, cfg.Replicas)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()

	published, err := timed(func() error { return s.Publish(ctx, 0, cfg.Events) })
	if err != nil {
		return Result{}, err
	}
	elapsed, err := timed(func() error { return run(ctx, s, cfg.Events) })
	if err != nil {
		return Result{}, err
	}
	if err := s.Verify(ctx, cfg.Events); err != nil {
		return Result{}, err
	}
	return Result{
		Events: cfg.Events, DataBytes: DataBytes, Replicas: cfg.Replicas,
		PublishedPerSec: float64(cfg.Events) / published.Seconds(),
		HopsPerSec:      float64(cfg.Events) / elapsed.Seconds(),
		ElapsedMS:       float64(elapsed.Microseconds()) / 1000,
		Server:          s.Bus.Conn().ConnectedServerVersion(),
	}, nil
}

func timed(f func() error) (time.Duration, error) {
	begun := time.Now()
	err := f()
	return time.Since(begun), err
}
