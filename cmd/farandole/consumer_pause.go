package main

import (
	"context"
	"errors"
	"os"
	"os/user"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/terminal"
)

type consumerPauseCmd struct {
	jsonFlag
	Name event.Consumer `arg:"" help:"The consumer."`
	For  time.Duration  `default:"10m" help:"For how long; it resumes by itself."`
	Why  string         `help:"Why, for those who look."`
}

// Run pauses the consumer and says until when.
func (c *consumerPauseCmd) Run(ctx context.Context, a *app) error {
	if c.For <= 0 {
		return usageErrorf("consumer pause: --for %v: want more than 0", c.For)
	}
	return a.withBus(ctx, "consumer", func(b *bus.Bus) error {
		p := consumer.Pause{Consumer: c.Name, For: c.For, By: operator(), Why: c.Why}
		until, err := p.Apply(ctx, b)
		if err != nil {
			return nameError("consumer pause", err)
		}
		logger := a.log("info")
		logger.Info().Str("consumer", string(c.Name)).Time("until", until).Str("by", p.By).Str("why", c.Why).Msg("consumer paused")
		if c.JSON {
			return a.printJSON(struct {
				Consumer event.Consumer `json:"consumer"`
				Until    time.Time      `json:"until"`
				By       string         `json:"by"`
				Why      string         `json:"why,omitempty"`
			}{c.Name, until, p.By, c.Why})
		}
		return a.printf("%s: paused until %s", c.Name, until.Local().Format(time.DateTime))
	})
}

type consumerResumeCmd struct {
	jsonFlag
	Name event.Consumer `arg:"" help:"The consumer."`
}

// Run ends the pause.
func (c *consumerResumeCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "consumer", func(b *bus.Bus) error {
		paused, err := consumer.Resume(ctx, b, c.Name)
		if err != nil {
			return nameError("consumer resume", err)
		}
		logger := a.log("info")
		logger.Info().Str("consumer", string(c.Name)).Bool("was_paused", paused).Str("by", operator()).Msg("consumer resumed")
		if c.JSON {
			return a.printJSON(struct {
				Consumer  event.Consumer `json:"consumer"`
				WasPaused bool           `json:"was_paused"`
			}{c.Name, paused})
		}
		if !paused {
			return a.printf("%s: was not paused", c.Name)
		}
		return a.printf("%s: resumed", c.Name)
	})
}

// nameError makes a consumer's name that cannot be an error of usage.
func nameError(command string, err error) error {
	if errors.Is(err, event.ErrInvalidConsumer) {
		return usageErrorf("%s: %v", command, err)
	}
	return err
}

// operator names who gives a command, as in "ops@host".
func operator() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return terminal.Printable(name + "@" + host)
}
