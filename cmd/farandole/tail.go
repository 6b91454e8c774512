package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
	"github.com/farandole/farandole/internal/terminal"
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
		options, err := c.options(ctx, a, b)
		if err != nil {
			return err
		}
		shown := 0
		err = follow.Read(ctx, b, options, func(m follow.Message) error {
			e, problem := m.Event()
			if !c.wants(m.Subject, e, problem) {
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

// options lets the server filter by type and key, as far as subjects hold them.
func (c *tailCmd) options(ctx context.Context, a *app, b *bus.Bus) (follow.Options, error) {
	o := follow.Options{FromStart: c.FromStart, NoFollow: c.NoFollow}
	if c.Since > 0 {
		o.Since = a.now().Add(-c.Since)
	}
	if o.NoFollow && o.Since.IsZero() {
		o.FromStart = true // else there would be nothing to show
	}
	types := c.Type
	if len(types) == 0 {
		types = []string{"*.*.*"}
	}
	n, byKey := b.Names(), c.Key != "" && !c.folded(ctx, b)
	for _, t := range types {
		if len(c.Type) > 0 {
			bare, err := n.TypeOf(t)
			if err != nil {
				return o, usageError{"tail: " + err.Error()}
			}
			t = string(bare)
		}
		switch key := event.EscapeKey(event.Key(c.Key)); {
		case byKey: // with a partition before the key, and without
			o.Filters = append(o.Filters, n.Root("events."+t+".*."+key), n.Root("events."+t+"."+key))
		case len(c.Type) > 0:
			o.Filters = append(o.Filters, n.TypeFilter(event.Type(t)))
		}
	}
	return o, nil
}

// folded reports whether the stream's subjects may hold numbers instead of keys.
// If that cannot be found out it is true, and all events are read.
func (c *tailCmd) folded(ctx context.Context, b *bus.Bus) bool {
	stream, err := b.Stream(ctx, b.Names().EventsStream())
	if err != nil {
		return true
	}
	t := stream.CachedInfo().Config.SubjectTransform
	return t != nil && !strings.HasSuffix(t.Destination, ".{{wildcard(4)}}")
}

// wants filters by what the server cannot: an event's own key and correlation.
func (c *tailCmd) wants(subject string, e event.Event, problem string) bool {
	if c.Key == "" && c.Correlation == "" {
		return true
	}
	return problem == "" && (c.Correlation == "" || event.Extension(e, event.ExtCorrelation) == c.Correlation) &&
		(c.Key == "" || isAbout(subject, e, event.Key(c.Key)))
}

// isAbout reports whether an event has this key: by its partitionkey, or by its
// subject if it has none.
func isAbout(subject string, e event.Event, key event.Key) bool {
	if event.Extension(e, event.ExtKey) == "" && strings.HasSuffix(subject, "."+event.EscapeKey(key)) {
		return true
	}
	return event.PartitionKey(e) == key
}

func (c *tailCmd) print(a *app, m follow.Message, e event.Event, problem string) error {
	switch {
	case problem != "":
		// It is no event and so does not go to stdout. Without a word on stderr
		// nobody would know of it.
		a.say("farandole: tail: message %d on %s: %s", m.Sequence, terminal.Printable(m.Subject), terminal.Printable(problem))
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
	line := fmt.Sprintf("%s  %-28s  %-24s  %s", terminal.Clock(a.now(), m.Time), terminal.Printable(t),
		terminal.Printable(string(event.PartitionKey(e))), terminal.Printable(id))
	err := a.printf("%s", terminal.Cut(line, a.columns))
	if err == nil && c.ShowData {
		err = a.printf("    %s", strings.Join(terminal.Data(e.Data()), "\n    "))
	}
	return err
}

// eventLine is an event in the CloudEvents JSON format on one line. The bytes of its
// data are unchanged: in the member data, or in data_base64 if a line of JSON cannot
// hold them, because they have line breaks or control a terminal.
func eventLine(e event.Event) ([]byte, error) {
	e.DataBase64 = e.DataBase64 || bytes.ContainsFunc(e.Data(), terminal.Obeyed)
	m, err := event.EncodeStructured(e)
	if err != nil {
		return nil, fmt.Errorf("tail: %w", err)
	}
	return append(terminal.EscapeJSON(m.Data), '\n'), nil
}
