package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type dlqReplayCmd struct {
	jsonFlag
	dlqSelection
	DryRun bool    `help:"Say what would happen, change nothing."`
	Rate   float64 `placeholder:"N" help:"At most this many a second. Default: as fast as possible."`
	Force  bool    `help:"Replay also what the ledger cannot vouch for: it may take effect twice; and where no consumer would get it."`
	Cancel bool    `help:"Take replays back that their consumer has not begun. The letters are as before."`
}

// Run replays the selected letters.
func (c *dlqReplayCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.Rate < 0:
		return usageErrorf("dlq replay: --rate %v: want more than 0", c.Rate)
	case c.Cancel && (c.Force || c.Rate > 0):
		return usageErrorf("dlq replay: --cancel takes neither --rate nor --force")
	}
	r := results{app: a, json: c.JSON, named: len(c.IDs) > 0}
	if c.Cancel {
		return r.run(ctx, "take back", "taken back", func(q *dlq.Queue) (dlq.Summary, error) {
			return q.TakeBack(ctx, c.selection(a.now()), dlq.TakeBackOptions{DryRun: c.DryRun}, r.add)
		})
	}
	return r.run(ctx, "replay", "replayed", func(q *dlq.Queue) (dlq.Summary, error) {
		return q.Replay(ctx, c.selection(a.now()), dlq.ReplayOptions{DryRun: c.DryRun, Rate: c.Rate, Force: c.Force, By: operator()}, r.add)
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
	if !c.DryRun {
		if err := a.confirm(c.Yes, "discard "+describe(s)+" for good"); err != nil {
			return err
		}
	}
	r := results{app: a, json: c.JSON, named: len(c.IDs) > 0}
	return r.run(ctx, "discard", "discarded", func(q *dlq.Queue) (dlq.Summary, error) {
		return q.Discard(ctx, s, dlq.DiscardOptions{DryRun: c.DryRun, Force: c.Force}, r.add)
	})
}

// describe says what a selection chooses.
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

// results prints what becomes of each letter as it happens.
type results struct {
	app  *app
	json bool
	// named says that the letters were named one by one, so that each has an answer.
	named bool
	gone  map[string]int // letters not replayed, by the consumer that is missing
	err   error          // of writing; the walk goes on: what was begun is finished
}

// run changes letters, and prints what became of them.
func (r *results) run(ctx context.Context, verb, done string, change func(*dlq.Queue) (dlq.Summary, error)) error {
	var sum dlq.Summary
	err := r.app.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) (err error) {
		sum, err = change(q)
		return err
	})
	return r.finish(verb, sum, r.app.rowsOnly(err, done))
}

// add prints a result: as JSON every one, for people those that need a look.
func (r *results) add(res dlq.Result) {
	var err error
	if res.Status == dlq.NoConsumer {
		if r.gone == nil {
			r.gone = map[string]int{}
		}
		r.gone[res.ID[:strings.LastIndexByte(res.ID, '.')]]++
	}
	switch {
	case r.json:
		err = r.app.printJSON(res)
	case res.Status == dlq.NoConsumer: // the same for all of its consumer: finish says it once
		err = r.app.printf("%s  %s", terminal.Printable(res.ID), res.Status.Words())
	case res.Message != "":
		err = r.app.printf("%s  %s: %s", terminal.Printable(res.ID), res.Status.Words(), terminal.Printable(res.Message))
	case r.named && res.Status != dlq.Replayed && res.Status != dlq.Discarded && res.Status != dlq.Pending:
		err = r.app.printf("%s  %s", terminal.Printable(res.ID), res.Status.Words())
	}
	if r.err == nil {
		r.err = err
	}
}

// finish prints the counts; letters that were refused, missing, failed or have
// no consumer make it exit code 1.
func (r *results) finish(verb string, sum dlq.Summary, err error) error {
	if sum.Counts[dlq.Pending] > 0 {
		r.app.say("a relay publishes the pending rows")
	}
	if sum.Selected > 0 || err == nil {
		r.app.say("%s: %s", verb, counts(sum))
	}
	for _, consumer := range slices.Sorted(maps.Keys(r.gone)) {
		r.app.say("%s not replayed: no consumer %s exists; start it, or --force stores the redrive for whoever comes",
			terminal.Number(r.gone[consumer]), terminal.Printable(consumer))
	}
	switch {
	case err != nil:
		return err
	case r.err != nil:
		return r.err
	case sum.Counts[dlq.Failed]+sum.Counts[dlq.Refused]+sum.Counts[dlq.NotFound]+sum.Counts[dlq.NoConsumer] > 0:
		return errSilent
	default:
		return nil
	}
}

// counts is "12 selected: 10 replayed, 2 refused".
func counts(sum dlq.Summary) string {
	var parts []string
	for status, n := range sum.Counts {
		parts = append(parts, terminal.Number(n)+" "+status.Words())
	}
	slices.Sort(parts)
	text := terminal.Number(sum.Selected) + " selected"
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if left := sum.Selected - sum.Reached(); left > 0 {
		text += fmt.Sprintf("; %s not reached, run it again to go on", terminal.Number(left))
	}
	return text
}
