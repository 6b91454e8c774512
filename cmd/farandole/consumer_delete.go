package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/terminal"
)

type consumerDeleteCmd struct {
	jsonFlag
	yesFlag
	Name   event.Consumer `arg:"" help:"The consumer."`
	Stream string         `help:"Stream that is not Farandole's, which the consumer reads: its durable there goes, too."`
}

// Run says what is given up, asks, and deletes the consumer.
func (c *consumerDeleteCmd) Run(ctx context.Context, a *app) error {
	d := consumer.Deletion{Consumer: c.Name, Stream: c.Stream}
	return a.withBus(ctx, "consumer", func(b *bus.Bus) error {
		r, err := d.Plan(ctx, b)
		if err != nil {
			return nameError("consumer delete", err)
		}
		if err := a.confirm(c.Yes, fmt.Sprintf("delete consumer %s and give up for good %s", c.Name, givenUp(r))); err != nil {
			return err
		}
		if err := d.Apply(ctx, b); err != nil {
			return err
		}
		logger := a.log("info")
		logger.Info().Str("consumer", string(c.Name)).Str("by", operator()).Interface("given_up", r).Msg("consumer deleted")
		if c.JSON {
			return a.printJSON(struct {
				Consumer event.Consumer `json:"consumer"`
				consumer.Remains
			}{c.Name, r})
		}
		return a.printf("%s: deleted, with %s", c.Name, givenUp(r))
	})
}

// givenUp is "2 pending events, 1,000 remembered ids, 1 waiting retry, 0 timers and 3 dead letters".
func givenUp(r consumer.Remains) string {
	parts := []string{
		terminal.Count(r.Pending, "pending event", "pending events"),
		terminal.Count(r.Remembered, "remembered id", "remembered ids"),
		terminal.Count(r.Retries, "waiting retry", "waiting retries"),
		terminal.Count(r.Timers, "timer", "timers"),
		terminal.Count(r.Letters, "dead letter", "dead letters"),
	}
	text := strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
	if r.Documents > 0 {
		text += fmt.Sprintf(" (its %s stay)", terminal.Count(r.Documents, "document", "documents"))
	}
	return text
}
