package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/terminal"
)

type dlqReplayCmd struct {
	jsonFlag
	dlqSelection
	DryRun    bool          `help:"Say what would happen, change nothing."`
	First     int           `placeholder:"N" help:"Only the N oldest ones of those selected that are not being replayed."`
	Rate      float64       `placeholder:"N" help:"At most this many a second. Default: as fast as possible."`
	Timeout   time.Duration `placeholder:"DURATION" help:"With --wait, wait no longer than this, as in 5m. Default: until nobody is there."`
	Canary    bool          `help:"Replay 1, then 10, then 100 and so on, and wait each time: go on only if those were handled."`
	MaxFailed percentage    `default:"10%" placeholder:"SHARE" help:"The greatest share of a canary's step that may fail again. Default: ${default}."`
	Force     bool          `help:"Replay also what the ledger cannot vouch for: it may take effect twice; and where no consumer would get it."`
	To        string        `placeholder:"CONSUMER" help:"Give the letters to this consumer first: their service was renamed."`
	dlqEdit
	Cancel bool `help:"Take replays back that their consumer has not begun, and rows that no relay has now. The letters are as before."`
}

// percentage is a part of a whole: "10%", "0.1".
type percentage float64

// UnmarshalText reads it.
func (p *percentage) UnmarshalText(text []byte) error {
	digits, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if percent {
		n /= 100
	}
	if err != nil || !(n >= 0 && n <= 1) {
		return fmt.Errorf("%q: want a share from 0%% to 100%%", text)
	}
	*p = percentage(n)
	return nil
}

// Help says what a flag cannot whose name is global.
func (*dlqReplayCmd) Help() string {
	return `--wait, without a duration, waits until each event is handled or has failed again. Exit code 3: some have failed again; 4: some have not ended, because nobody is there or --timeout is over.`
}

func (c *dlqReplayCmd) validate(wait bool) error {
	waits := wait || c.Canary
	switch {
	case c.Rate < 0:
		return usageErrorf("dlq replay: --rate %v: want more than 0", c.Rate)
	case c.First < 0:
		return usageErrorf("dlq replay: --first %d: want more than 0", c.First)
	case c.First > 0 && len(c.IDs) > 0:
		return usageErrorf("dlq replay: --first chooses among many; name ids without it")
	case c.Timeout != 0 && !waits || c.Timeout < 0:
		return usageErrorf("dlq replay: --timeout %v: it is for --wait and --canary", c.Timeout)
	case c.given() && (len(c.IDs) != 1 || c.DryRun):
		return usageErrorf("dlq replay: --data and --set-header change the event of one letter: name its id, without --dry-run")
	case c.Cancel && (c.given() || c.To != "" || c.Force || c.Rate > 0 || waits || c.First > 0):
		return usageErrorf("dlq replay: --cancel goes with ids, a filter or --all, and --dry-run")
	}
	return nil
}

// errTimeout ends a wait.
type errTimeout time.Duration

func (e errTimeout) Error() string { return fmt.Sprintf("--timeout %v is over", time.Duration(e)) }

// Run replays the selected letters.
func (c *dlqReplayCmd) Run(ctx context.Context, a *app) error {
	wait := a.root.Connection.Wait.bare
	if err := c.validate(wait); err != nil {
		return err
	}
	if d := a.root.Connection.Wait.server; d > 0 && !wait && os.Getenv("FARANDOLE_WAIT") == "" {
		a.say("--wait %v is for a server that is not up; --wait --timeout %v waits for what becomes of the events", d, d)
	}
	r := results{app: a, json: c.JSON, named: len(c.IDs) > 0, to: c.To, waits: (wait || c.Canary) && !c.DryRun}
	selection := c.selection(a.now())
	selection.First = c.First
	if c.Cancel {
		return r.run(ctx, "take back", "taken back", func(q *dlq.Queue) (dlq.Summary, error) {
			return q.TakeBack(ctx, selection, dlq.TakeBackOptions{DryRun: c.DryRun}, r.add)
		})
	}
	if c.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, c.Timeout, errTimeout(c.Timeout))
		defer stop()
	}
	o := dlq.ReplayOptions{
		DryRun: c.DryRun, Rate: c.Rate, Force: c.Force, By: operator(),
		Wait: wait, Canary: c.Canary, MaxFailed: float64(c.MaxFailed), To: event.Consumer(c.To),
	}
	edit, err := c.read(a)
	if err != nil {
		return err
	}
	return r.run(ctx, "replay", "replayed", func(q *dlq.Queue) (dlq.Summary, error) {
		if c.given() {
			if _, err := saveEdit(ctx, a, q, c.IDs[0], edit); err != nil {
				return dlq.Summary{}, err
			}
		}
		return q.Replay(ctx, selection, o, r.add)
	})
}

type dlqDiscardCmd struct {
	jsonFlag
	yesFlag
	dlqSelection
	DryRun bool `help:"Say what would happen, change nothing."`
	Force  bool `help:"Discard also letters of events that are in progress."`
}

// Run discards the selected letters, after asking.
func (c *dlqDiscardCmd) Run(ctx context.Context, a *app) error {
	s := c.selection(a.now())
	if !c.DryRun && !c.Yes && !a.asks { // before anything is connected to
		return a.confirm(false, "discard "+describe(s)+" for good")
	}
	r := results{app: a, json: c.JSON, named: len(c.IDs) > 0}
	return r.run(ctx, "discard", "discarded", func(q *dlq.Queue) (dlq.Summary, error) {
		if !c.DryRun && !c.Yes {
			if err := a.confirmLetters(ctx, q, s, "discard"); err != nil {
				return dlq.Summary{}, err
			}
		}
		return q.Discard(ctx, s, dlq.DiscardOptions{DryRun: c.DryRun, Force: c.Force}, r.add)
	})
}

// describe says what a selection chooses, before it is known.
func describe(s dlq.Selection) string {
	switch {
	case len(s.IDs) == 1:
		return "dead letter " + terminal.Printable(s.IDs[0])
	case len(s.IDs) > 1:
		return fmt.Sprintf("%d dead letters", len(s.IDs))
	case s.All:
		return "ALL dead letters"
	default:
		return "the dead letters that match"
	}
}

// maxKinds is how many kinds of failure a question shows.
const maxKinds = 5

// confirmLetters asks before letters are changed: how many, of which kinds, and three of
// them. If nothing is selected there is nothing to ask.
func (a *app) confirmLetters(ctx context.Context, q *dlq.Queue, s dlq.Selection, verb string) error {
	p, err := q.Preview(ctx, s)
	if err != nil || p.Total == 0 {
		return err
	}
	if err := a.preview(p); err != nil {
		return err
	}
	return a.confirm(false, fmt.Sprintf("%s %s for good", verb, terminal.Count(p.Total, "dead letter", "dead letters")))
}

// preview shows what a question is about.
func (a *app) preview(p dlq.Preview) error {
	for i, k := range p.Kinds {
		if i == maxKinds {
			a.say("%s of further kinds", terminal.Number(p.Total-countOf(p.Kinds[:i])))
			break
		}
		of := terminal.Printable(string(k.Consumer))
		if k.Type != "" {
			of += ", " + terminal.Printable(string(k.Type))
		}
		a.say("%s", a.wrap(fmt.Sprintf("%s of %s: %s", terminal.Number(k.Count), of, terminal.Cell(cause(k.Class, k.Error), 80)), 4))
	}
	a.say("for example")
	return newLetterTable(a, styledWriter(a.err)).write(p.Examples)
}

func countOf(kinds []dlq.Kind) (n int) {
	for _, k := range kinds {
		n += k.Count
	}
	return n
}
