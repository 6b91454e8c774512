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

type consumerCmd struct {
	List   consumerListCmd   `cmd:"" help:"Where all consumers stand: what waits for them, who works on it."`
	Show   consumerShowCmd   `cmd:"" help:"Where one consumer stands: its durables, or its partitions and members."`
	Pause  consumerPauseCmd  `cmd:"" help:"Have all processes of a consumer begin nothing for a while. What runs goes on; no attempt is spent."`
	Resume consumerResumeCmd `cmd:"" help:"End a consumer's pause before its time."`
	Delete consumerDeleteCmd `cmd:"" help:"Retire a consumer: its place and all that waits for it are given up. Stop its processes first."`
	Drop   consumerDropCmd   `cmd:"" help:"Take event types out of a consumer: what is pending of them is dropped. Stop what handles them first."`
}

type consumerDropCmd struct {
	jsonFlag
	yesFlag
	Name    event.Consumer `arg:"" help:"The consumer."`
	Type    []event.Type   `sep:"none" placeholder:"TYPE" help:"Event type to drop, as in order.placed.v1, or a pattern that the consumer takes, as in order.*. Can be repeated."`
	Stream  string         `help:"Stream that is not Farandole's, which the consumer reads."`
	Subject []string       `sep:"none" placeholder:"SUBJECT" help:"Subject to drop there, as the consumer has it. Can be repeated."`
}

// Run shows how many pending events would be dropped, asks, and drops them.
func (c *consumerDropCmd) Run(ctx context.Context, a *app) error {
	if (c.Stream == "") != (len(c.Subject) == 0) || (c.Stream == "") != (len(c.Type) > 0) {
		return usageErrorf("consumer drop: want --type, or --stream and --subject")
	}
	d := consumer.Drop{Consumer: c.Name, Stream: c.Stream, Types: c.Type, Subjects: c.Subject}
	return a.withBus(ctx, "consumer", func(b *bus.Bus) error {
		plan, err := d.Plan(ctx, b)
		if err != nil {
			return err
		}
		var parts []string
		for _, p := range plan {
			parts = append(parts, fmt.Sprintf("%s pending events on %s", terminal.Number(p.Pending), terminal.Printable(p.Subject)))
		}
		what := strings.Join(parts, " and ")
		if err := a.confirm(c.Yes, fmt.Sprintf("drop %s for consumer %s for good", what, c.Name)); err != nil {
			return err
		}
		if err := d.Apply(ctx, b); err != nil {
			return err
		}
		if c.JSON {
			return a.printJSON(struct {
				Consumer event.Consumer      `json:"consumer"`
				Dropped  []consumer.Dropping `json:"dropped"`
			}{c.Name, plan})
		}
		return a.printf("%s: dropped %s", c.Name, what)
	})
}
