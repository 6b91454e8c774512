package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/human"
)

type tailCmd struct {
	jsonFlag
	Type        []string      `sep:"," help:"Only these event types."`
	Key         string        `help:"Only events about this key."`
	Correlation string        `help:"Only events of this saga."`
	FromStart   bool          `xor:"start" help:"Begin with the oldest stored event."`
	Since       time.Duration `xor:"start" placeholder:"DURATION" help:"Begin this long ago, as in 10m."`
	Limit       int           `short:"n" help:"End after this many events."`
	NoFollow    bool          `help:"End with the newest stored event instead of waiting for more."`
	ShowData    bool          `name:"data" help:"Show the events' data."`
}

// Run prints events as they are stored, until interrupted.
func (c *tailCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "tail", func(b *bus.Bus) error {
		options, err := c.options(a, b.Names())
		if err != nil {
			return err
		}
		shown := 0
		err = follow.Read(ctx, b, options, func(m follow.Message) error {
			e, problem := m.Event()
			if !c.wants(e, problem) {
				return nil
			}
			if err := c.print(a, m, e, problem); err != nil {
				return err
			}
			if shown++; shown == c.Limit {
				return follow.ErrStop
			}
			return nil
		})
		if errors.Is(err, context.Canceled) { // the ordinary end of following
			err = nil
		}
		return err
	})
}

// options filters at the server as far as subjects tell.
func (c *tailCmd) options(a *app, n bus.Names) (follow.Options, error) {
	o := follow.Options{FromStart: c.FromStart, NoFollow: c.NoFollow}
	if c.Since > 0 {
		o.Since = a.now().Add(-c.Since)
	}
	if o.NoFollow && o.Since.IsZero() {
		o.FromStart = true // else there would be nothing to show
	}
	for _, t := range c.Type {
		bare, err := n.TypeOf(t)
		if err != nil {
			return o, usageError{"tail: " + err.Error()}
		}
		if c.Key != "" {
			o.Filters = append(o.Filters, n.EventSubject(bare, bus.Key(c.Key)))
		} else {
			o.Filters = append(o.Filters, n.TypeFilter(bare))
		}
	}
	if len(c.Type) == 0 && c.Key != "" {
		o.Filters = []string{n.Root("events.*.*.*." + bus.EscapeKey(bus.Key(c.Key)))}
	}
	return o, nil
}

// wants decides what subjects do not tell.
func (c *tailCmd) wants(e bus.Event, problem string) bool {
	return c.Correlation == "" || problem == "" && bus.Extension(e, bus.ExtCorrelation) == c.Correlation
}

func (c *tailCmd) print(a *app, m follow.Message, e bus.Event, problem string) error {
	switch {
	case problem != "":
		// Not an event, so not on stdout among events; silence would hide poison.
		a.say("farandole: tail: message %d on %s: %s", m.Sequence, human.Printable(m.Subject), human.Printable(problem))
		return nil
	case c.JSON:
		line, err := eventLine(e)
		if err != nil {
			return err
		}
		_, err = a.out.Write(line)
		return err
	}
	t, id := e.Type(), e.ID()
	err := a.printf("%s  %-28s  %-24s  %s", m.Time.Local().Format("15:04:05.000"), human.Printable(t),
		human.Printable(string(bus.PartitionKey(e))), human.Printable(id))
	if err == nil && c.ShowData {
		err = a.printf("    %s", strings.Join(human.Data(e.Data()), "\n    "))
	}
	return err
}

// eventLine is an event in the CloudEvents JSON format on one line. JSON data
// is embedded as it is; only line breaks between its tokens are taken out.
func eventLine(e bus.Event) ([]byte, error) {
	m, err := bus.EncodeStructured(e)
	if err != nil {
		return nil, fmt.Errorf("tail: %w", err)
	}
	var line bytes.Buffer
	if bytes.ContainsAny(m.Data, "\r\n") {
		if err := json.Compact(&line, m.Data); err != nil {
			return nil, fmt.Errorf("tail: %w", err)
		}
	} else {
		line.Write(m.Data)
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}
