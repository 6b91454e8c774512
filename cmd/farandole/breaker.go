package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/resilience/fleet"
)

type breakerCmd struct {
	List  breakerListCmd  `cmd:"" help:"Where all shared breakers stand."`
	Show  breakerShowCmd  `cmd:"" help:"Where one stands, since when, by whom and why."`
	Open  breakerOpenCmd  `cmd:"" help:"Open a breaker: all processes of its consumer begin nothing, whatever the dependency does. No attempt is spent."`
	Close breakerCloseCmd `cmd:"" help:"Close a breaker; it may open again by itself."`
}

// breakerArg is embedded in commands that are about one breaker.
type breakerArg struct {
	Name string `arg:"" help:"The breaker, as in gateway, or payment/gateway if several consumers have one of that name."`
}

// find returns the breaker that is meant.
func (n breakerArg) find(ctx context.Context, b *bus.Bus) (fleet.Status, error) {
	all, err := breakers(ctx, b)
	if err != nil {
		return fleet.Status{}, err
	}
	var meant []fleet.Status
	for _, s := range all {
		if s.Breaker == n.Name || s.Name() == n.Name {
			meant = append(meant, s)
		}
	}
	switch {
	case len(meant) == 1:
		return meant[0], nil
	case len(meant) > 1:
		return fleet.Status{}, fmt.Errorf("several breakers are called %s: name one of %s", n.Name, namesOf(meant))
	case len(all) == 0:
		return fleet.Status{}, fmt.Errorf("%w %s: no consumer has shared one yet", fleet.ErrUnknown, n.Name)
	}
	return fleet.Status{}, fmt.Errorf("%w %s: there are %s", fleet.ErrUnknown, n.Name, namesOf(all))
}

func namesOf(all []fleet.Status) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name()
	}
	return strings.Join(names, ", ")
}

// breakers are those of all consumers, by name.
func breakers(ctx context.Context, b *bus.Bus) ([]fleet.Status, error) {
	all, err := fleet.List(ctx, b)
	slices.SortFunc(all, func(x, y fleet.Status) int { return cmp.Compare(x.Name(), y.Name()) })
	return all, err
}

type breakerListCmd struct {
	jsonFlag
}

// Run prints a line for each breaker.
func (c *breakerListCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "breaker", func(b *bus.Bus) error {
		all, err := breakers(ctx, b)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.printJSON(struct {
				Breakers []fleet.Status `json:"breakers"`
			}{all})
		}
		if len(all) == 0 {
			a.say("no breakers")
			return nil
		}
		table := a.table("~BREAKER", "STATE", "UNTIL", ">OPENED", "SINCE", "~BY", "~WHY")
		for _, s := range all {
			table.Row(terminal.Cell(s.Name(), 65), stateOf(s), untilOf(s), terminal.Number(s.Opened), terminal.Age(a.now(), s.At),
				terminal.Cell(s.By, 32), cmp.Or(terminal.Cell(s.Why, 60), "-"))
		}
		_, err = table.WriteTo(a.styled)
		return err
	})
}

// stateOf is a breaker's state for people.
func stateOf(s fleet.Status) string {
	if s.Forced {
		return s.State + " (forced)"
	}
	return s.State
}

// furtherNotice is the end of what somebody has to close.
const furtherNotice = "further notice"

// untilOf is until when an open breaker is not probed.
func untilOf(s fleet.Status) string {
	switch {
	case s.State != "open":
		return "-"
	case s.Until.IsZero():
		return furtherNotice
	}
	return s.Until.Local().Format(time.DateTime)
}

type breakerShowCmd struct {
	jsonFlag
	breakerArg
}

// Run prints where the breaker stands.
func (c *breakerShowCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "breaker", func(b *bus.Bus) error {
		s, err := c.find(ctx, b)
		switch {
		case err != nil:
			return err
		case c.JSON:
			return a.printJSON(s)
		}
		lines := [][2]string{
			{"state", stateOf(s)},
			{"until", untilOf(s)},
			{"since", s.At.Local().Format(time.DateTime)},
			{"by", terminal.Cell(s.By, 64)},
			{"why", terminal.Cell(s.Why, 200)},
			{"prober", terminal.Cell(s.Prober, 64)},
			{"opened", terminal.Number(s.Opened) + " times from closed"},
		}
		if err := a.printf("%s", terminal.Cell(s.Name(), 65)); err != nil {
			return err
		}
		for _, l := range lines {
			if l[1] == "" || l[1] == "-" {
				continue
			}
			if err := a.printf("  %-7s %s", l[0], l[1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// forced is what a command that sets a state prints as JSON.
type forced struct {
	fleet.Status

	Was string `json:"was"`
}

// force has f set the state of a breaker, logs who did and why, and prints where it stands.
func (n breakerArg) force(ctx context.Context, a *app, asJSON bool, why string,
	f func(*bus.Bus, fleet.Force) (before, after fleet.Status, err error),
) error {
	return a.withBus(ctx, "breaker", func(b *bus.Bus) error {
		s, err := n.find(ctx, b)
		if err != nil {
			return err
		}
		before, after, err := f(b, fleet.Force{Consumer: s.Consumer, Breaker: s.Breaker, By: operator(), Why: why})
		if after.State == "" {
			return err
		}
		logger := a.log("info")
		line := logger.Info().Str("consumer", string(after.Consumer)).Str("breaker", after.Breaker).
			Str("state", after.State).Str("was", before.State)
		if !after.Until.IsZero() {
			line = line.Time("until", after.Until)
		}
		line.Str("by", operator()).Str("why", why).Msg("breaker set by an operator")
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.printJSON(forced{after, before.State})
		case after.State == "open":
			return a.printf("%s: open until %s", after.Name(), untilOf(after))
		case before.State == after.State:
			return a.printf("%s: was closed already", after.Name())
		}
		return a.printf("%s: closed, was %s", after.Name(), before.State)
	})
}

type breakerOpenCmd struct {
	jsonFlag
	breakerArg
	For    *time.Duration `help:"For how long; then it is probed. Default: until it is closed."`
	Reason string         `help:"Why, for those who look."`
}

// Run opens the breaker and says until when.
func (c *breakerOpenCmd) Run(ctx context.Context, a *app) error {
	var d time.Duration
	if c.For != nil {
		if d = *c.For; d <= 0 {
			return usageErrorf("breaker open: --for %v: want more than 0", d)
		}
	}
	return c.force(ctx, a, c.JSON, c.Reason, func(b *bus.Bus, f fleet.Force) (before, after fleet.Status, err error) {
		return f.Open(ctx, b, d)
	})
}

type breakerCloseCmd struct {
	jsonFlag
	breakerArg
	Reason string `help:"Why, for those who look."`
}

// Run closes the breaker.
func (c *breakerCloseCmd) Run(ctx context.Context, a *app) error {
	return c.force(ctx, a, c.JSON, c.Reason, func(b *bus.Bus, f fleet.Force) (before, after fleet.Status, err error) {
		return f.Close(ctx, b)
	})
}
