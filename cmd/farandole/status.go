package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/internal/status"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type statusCmd struct {
	jsonFlag
	watchFlag
	Outbox outboxFlags `embed:"" group:"Outbox, whose backlog is shown too:"`
}

// standing is what the command shows.
type standing struct {
	status.System
	Outbox *outboxStats `json:"outbox,omitempty"`
}

// Run prints where the system stands.
func (c *statusCmd) Run(ctx context.Context, a *app) error {
	if !c.Outbox.given() {
		return c.look(ctx, a, func(b *bus.Bus) error { return c.show(ctx, a, b, nil) })
	}
	return a.withOutbox(c.Outbox, func(o *outbox.Outbox) error {
		return c.look(ctx, a, func(b *bus.Bus) error { return c.show(ctx, a, b, o) })
	})
}

func (c *statusCmd) show(ctx context.Context, a *app, b *bus.Bus, o *outbox.Outbox) (err error) {
	var s standing
	if s.System, err = status.Read(ctx, b); err != nil {
		return err
	}
	var unread error // the rest is worth showing all the same
	if o != nil {
		s.Outbox, unread = readOutboxStats(ctx, o)
	}
	if c.JSON {
		err = a.printJSON(s)
	} else {
		err = printStatus(a.styled, s, a.columns)
	}
	return errors.Join(err, unread)
}

// printStatus prints the screen, at most so many columns wide. 0 is no limit.
func printStatus(w io.Writer, s standing, columns int) error {
	streams := terminal.NewTable("~STREAM", ">MESSAGES", ">SIZE", ">FULL", "OLDEST", "NEWEST", ">REPLICAS").Fit(columns)
	for _, t := range s.Streams {
		full := "-"
		if used, limited := t.Full(); limited {
			full = fmt.Sprintf("%.0f %%", 100*used)
		}
		streams.Row(terminal.Cell(t.Name, 48), terminal.Number(t.Messages), terminal.Size(int(t.Bytes)), full, //nolint:gosec // bytes of one server
			terminal.Age(s.At, t.Oldest), terminal.Age(s.At, t.Newest), fmt.Sprintf("%d/%d", t.Current, t.Replicas))
	}
	if _, err := streams.WriteTo(w); err != nil {
		return err
	}
	if err := printConsumers(w, s.System, columns); err != nil {
		return err
	}
	notes := notesOf(s)
	if len(notes) > 0 {
		notes = append([]string{""}, notes...)
	}
	for _, note := range notes {
		if _, err := fmt.Fprintln(w, terminal.Wrap(note, columns, 2)); err != nil {
			return err
		}
	}
	return nil
}

func printConsumers(w io.Writer, s status.System, columns int) error {
	if len(s.Consumers) == 0 {
		_, err := fmt.Fprintln(w, "\nno consumers: start a service, and it is here")
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	table := terminal.NewTable("~CONSUMER", ">WORKERS", ">LAG", "OLDEST", ">IN FLIGHT", ">RETRIES", ">REPLAYS", ">DEAD").Fit(columns)
	for _, c := range s.Consumers {
		workers := workersOf(c.Status)
		if c.Gone {
			workers = "gone"
		}
		table.Row(terminal.Cell(string(c.Consumer), 64), workers, terminal.Number(c.Lag), age(s.At, c.Oldest),
			terminal.Number(c.InFlight), terminal.Number(c.Retries), terminal.Number(c.Replays), terminal.Number(c.DeadLetters))
	}
	_, err := table.WriteTo(w)
	return err
}

// age is [terminal.Age] for a narrow column: "3m".
func age(now, t time.Time) string { return strings.TrimSuffix(terminal.Age(now, t), " ago") }

// workersOf is how many processes run a consumer, or why none is seen.
func workersOf(s consumer.Status) string {
	switch {
	case s.Unattended:
		return "nobody"
	case s.Workers == 0 && len(s.Paused) > 0:
		return "paused"
	case s.Workers == 0:
		return "busy" // all places of the process are taken, so it asks for nothing
	case len(s.Paused) > 0:
		return terminal.Number(s.Workers) + " paused"
	}
	return terminal.Number(s.Workers)
}

// notesOf are the sentences under the tables: what somebody has to know or to do.
func notesOf(s standing) (notes []string) {
	for _, c := range s.Consumers {
		name := terminal.Cell(string(c.Consumer), 64)
		for _, p := range c.Paused {
			notes = append(notes, name+" is "+pauseText(p))
		}
		switch {
		case c.Gone:
			notes = append(notes, fmt.Sprintf("%s has no place at the server (any more): start it, or `farandole consumer delete %s` gives up what waits for it", name, name))
		case c.Unattended:
			notes = append(notes, name+" is run by nobody: no process of it is seen")
		}
	}
	for _, t := range s.Streams {
		if used, limited := t.Full(); limited && used >= 0.8 {
			notes = append(notes, fmt.Sprintf("%s is %.0f %% full: raise its limits, or remove messages", terminal.Cell(t.Name, 48), 100*used))
		}
		if t.Current < t.Replicas {
			notes = append(notes, fmt.Sprintf("%s has %d of its %d replicas up to date", terminal.Cell(t.Name, 48), t.Current, t.Replicas))
		}
	}
	if s.DeadLetters > 0 {
		notes = append(notes, terminal.Count(s.DeadLetters, "dead letter", "dead letters")+": `farandole dlq stats` says which")
	}
	if s.Outbox != nil {
		notes = append(notes, "outbox: "+s.Outbox.String())
	}
	return notes
}
