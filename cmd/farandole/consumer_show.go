package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/terminal"
)

// watchEvery is the time between two looks of --watch.
const watchEvery = 2 * time.Second

// watchFlag is embedded in commands that can look again and again.
type watchFlag struct {
	Watch bool `short:"w" help:"Look again every 2 s, until interrupted. With --json a line for each look."`
}

// look calls f with a connection: once, or again and again.
func (w watchFlag) look(ctx context.Context, a *app, f func(*bus.Bus) error) error {
	return a.withBus(ctx, "consumer", func(b *bus.Bus) error {
		for first := true; ; first = false {
			if !first && a.shows {
				fmt.Fprint(a.out, "\x1b[H\x1b[2J") // the new look takes the place of the last one
			}
			if err := f(b); !w.Watch || err != nil && ctx.Err() == nil {
				return err
			}
			if !backoff.Wait(ctx, watchEvery) {
				return nil // the ordinary end
			}
		}
	})
}

type consumerListCmd struct {
	jsonFlag
	watchFlag
}

// Run prints a line for each consumer.
func (c *consumerListCmd) Run(ctx context.Context, a *app) error {
	return c.look(ctx, a, func(b *bus.Bus) error {
		all, err := consumer.List(ctx, b)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.printJSON(struct {
				Consumers []consumer.Status `json:"consumers"`
			}{all})
		}
		if len(all) == 0 {
			a.say("no consumers")
			return nil
		}
		table := a.table("~CONSUMER", ">LAG", ">IN FLIGHT", ">RETRIES", ">PARTITIONS", ">WORKERS", "~PAUSED BY")
		for _, s := range all {
			partitions := "-"
			if s.Partitions != nil {
				partitions = fmt.Sprintf("%d/%d", owned(s), len(s.Partitions))
			}
			table.Row(terminal.Cell(string(s.Consumer), 32), terminal.Number(s.Lag), terminal.Number(s.InFlight),
				terminal.Number(s.Retries), partitions, workersOf(s), pausedBy(s))
		}
		_, err = table.WriteTo(a.styled)
		return err
	})
}

// pausedBy names what holds a consumer up.
func pausedBy(s consumer.Status) string {
	reasons := make([]string, len(s.Paused))
	for i, p := range s.Paused {
		reasons[i] = terminal.Cell(p.Reason, 64)
	}
	return cmp.Or(strings.Join(reasons, ", "), "-")
}

// owned is how many partitions have an owner.
func owned(s consumer.Status) (n int) {
	for _, p := range s.Partitions {
		if p.Owned {
			n++
		}
	}
	return n
}

type consumerShowCmd struct {
	jsonFlag
	watchFlag
	Name event.Consumer `arg:"" help:"The consumer."`
}

// Run prints where the consumer stands.
func (c *consumerShowCmd) Run(ctx context.Context, a *app) error {
	return c.look(ctx, a, func(b *bus.Bus) error {
		s, err := consumer.Look(ctx, b, c.Name)
		switch {
		case errors.Is(err, event.ErrInvalidConsumer):
			return usageErrorf("consumer show: %v", err)
		case err != nil:
			return err
		case c.JSON:
			return a.printJSON(s)
		}
		if err := a.printf("%s: %s events have not ended; %s are in flight, %s wait for a retry (%s of them as timers)\n", s.Consumer,
			terminal.Number(s.Lag), terminal.Number(s.InFlight), terminal.Number(s.Retries), terminal.Number(s.Deferred)); err != nil {
			return err
		}
		if err := printPaused(a, s.Paused); err != nil {
			return err
		}
		there := terminal.Count(s.Workers, "process runs it", "processes run it")
		if s.Unattended {
			there = "nobody runs it: no process of it is seen"
		}
		if err := a.printf("%s", there); err != nil {
			return err
		}
		if s.Partitions == nil {
			return printDurables(a, s.Durables)
		}
		if err := printMembers(a, s); err != nil {
			return err
		}
		return printPartitions(a, s.Partitions)
	})
}

// printPaused says what holds a consumer up, a line for each reason.
func printPaused(a *app, paused []consumer.PausedStatus) error {
	for _, p := range paused {
		if err := a.printf("%s", pauseText(p)); err != nil {
			return err
		}
	}
	return nil
}

// pauseText is "paused until 2026-03-04 05:06:07 by operator (ops@host): a change".
func pauseText(p consumer.PausedStatus) string {
	why := ""
	if p.Why != "" {
		why = ": " + terminal.Cell(p.Why, 120)
	}
	until := furtherNotice
	if !p.Until.IsZero() {
		until = p.Until.Local().Format(time.DateTime)
	}
	return fmt.Sprintf("paused until %s by %s (%s)%s", until, terminal.Cell(p.Reason, 64), terminal.Cell(p.By, 64), why)
}

func printDurables(a *app, durables []consumer.DurableStatus) error {
	table := a.table("~DURABLE", ">PENDING", ">ACK PENDING", ">REDELIVERED", ">PULLS")
	for _, d := range durables {
		table.Row(terminal.Cell(d.Name, 48), terminal.Number(d.Pending), terminal.Number(d.AckPending),
			terminal.Number(d.Redelivered), terminal.Number(d.Pulls))
	}
	_, err := table.WriteTo(a.styled)
	return err
}

func printMembers(a *app, s consumer.Status) error {
	if len(s.Members) == 0 {
		return a.printf("no members: nobody works on it\n")
	}
	table := a.table("MEMBER", "~HOST", "SINCE", ">PARTITIONS", "")
	for _, m := range s.Members {
		n, leaving := 0, ""
		for _, p := range s.Partitions {
			if p.Owned && p.Owner == m.ID {
				n++
			}
		}
		if m.Leaving {
			leaving = "leaves"
		}
		table.Row(terminal.Cell(m.ID, 32), terminal.Cell(m.Host, 32), terminal.Age(a.now(), m.Since), terminal.Number(n), leaving)
	}
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	return a.printf("")
}

func printPartitions(a *app, partitions []consumer.PartitionStatus) error {
	table := a.table(">PARTITION", "~OWNER", ">FLOOR", ">LAG", ">RETRIES", "LAST PAGE")
	for _, p := range partitions {
		owner, page := "-", "-"
		switch {
		case p.Owned:
			owner = terminal.Cell(p.Owner, 32)
		case p.Owner != "" && p.Page != "farewell":
			owner = terminal.Cell(p.Owner, 32) + " (gone)"
		}
		if p.Page != "" {
			page = terminal.Cell(p.Page, 12) + ", " + terminal.Age(a.now(), p.At)
		}
		table.Row(fmt.Sprint(p.Partition), owner, terminal.Number(p.Floor), terminal.Number(p.Lag), terminal.Number(p.Retries), page)
	}
	_, err := table.WriteTo(a.styled)
	return err
}
