package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type dlqStatsCmd struct {
	jsonFlag
}

// Run prints counts and kinds of failure.
func (c *dlqStatsCmd) Run(ctx context.Context, a *app) error {
	var letters dlq.Stats
	var rows *outboxStats
	err := a.withQueue(ctx, func(q *dlq.Queue, o *outbox.Outbox) (err error) {
		if o != nil {
			if rows, err = readOutboxStats(ctx, o); err != nil {
				return err
			}
		}
		letters, err = q.Stats(ctx)
		return err
	})
	if err = a.rowsOnly(err, "counted"); err != nil && !errors.Is(err, errSilent) {
		return err
	}
	if rows != nil {
		maps.Copy(rows.Reasons, letters.Consumers[dlq.ConsumerOutbox])
		for _, r := range letters.Replays {
			if r.Consumer == dlq.ConsumerOutbox {
				rows.Replayed = r.Waiting + r.Running + r.Retrying
			}
		}
	}
	if printErr := c.print(a, letters, rows); printErr != nil {
		return printErr
	}
	return err
}

// print prints both; rows is nil if there is no outbox.
func (c *dlqStatsCmd) print(a *app, letters dlq.Stats, rows *outboxStats) error {
	if c.JSON {
		return a.printJSON(struct {
			dlq.Stats
			Outbox *outboxStats `json:"outbox,omitempty"`
		}{letters, rows})
	}
	if rows != nil {
		if err := a.printf("outbox: %s", rows); err != nil {
			return err
		}
	}
	return printStats(a, letters)
}

// outboxStats is what stats says of the rows of an outbox.
type outboxStats struct {
	Parked     int64   `json:"parked"`
	Replayed   int     `json:"replayed"` // parked rows that are to be published again
	Pending    int64   `json:"pending"`
	Waiting    int64   `json:"waiting"`
	Processing int64   `json:"processing"`
	Oldest     float64 `json:"oldest_seconds"`
	// Reasons count the parked rows, and those that are being replayed.
	Reasons map[string]int `json:"reasons"`
}

func readOutboxStats(ctx context.Context, o *outbox.Outbox) (*outboxStats, error) {
	s, err := o.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return &outboxStats{
		Parked: s.Parked, Pending: s.Pending, Waiting: s.Waiting, Processing: s.Processing, Oldest: s.Oldest.Seconds(),
		Reasons: map[string]int{},
	}, nil
}

// String is "3 parked, 1 being replayed (3 exhausted, 1 permanent); 12 to publish, the oldest for 4s".
func (s outboxStats) String() string {
	text := terminal.Number(s.Parked) + " parked"
	if s.Replayed > 0 {
		text += ", " + terminal.Number(s.Replayed) + " being replayed"
	}
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(s.Reasons)) {
		reasons = append(reasons, terminal.Number(s.Reasons[reason])+" "+terminal.Printable(reason))
	}
	if len(reasons) > 0 {
		text += " (" + strings.Join(reasons, ", ") + ")"
	}
	open := s.Pending + s.Processing
	text += "; " + terminal.Number(open) + " to publish"
	if open > 0 {
		text += fmt.Sprintf(", the oldest for %v", time.Duration(s.Oldest*float64(time.Second)).Round(time.Second))
	}
	return text
}

func printStats(a *app, s dlq.Stats) error {
	now := a.now()
	for _, w := range s.Stranded {
		text := fmt.Sprintf("no consumer %s exists, and %s: start it, and it takes them", terminal.Printable(string(w.Consumer)), waiting(w))
		if err := a.printf("%s", a.wrap(text, 2)); err != nil {
			return err
		}
	}
	for _, r := range s.Replays {
		if err := a.printf("%s", a.wrap(replaysText(r, now), 2)); err != nil {
			return err
		}
	}
	if s.Total == 0 {
		a.say("no dead letters")
		return nil
	}
	total := fmt.Sprintf("%s, oldest %s, newest %s; %s in the last hour, %s in the last day",
		terminal.Count(s.Total, "dead letter", "dead letters"), terminal.Age(now, s.Oldest), terminal.Age(now, s.Newest),
		terminal.Number(s.LastHour), terminal.Number(s.LastDay))
	if err := a.printf("%s\n", a.wrap(total, 2)); err != nil {
		return err
	}
	table := a.table("~CONSUMER", "REASON", ">COUNT")
	for _, consumer := range slices.Sorted(maps.Keys(s.Consumers)) {
		for _, reason := range slices.Sorted(maps.Keys(s.Consumers[consumer])) {
			table.Row(terminal.Cell(string(consumer), 32), terminal.Cell(reason, 12), terminal.Number(s.Consumers[consumer][reason]))
		}
	}
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	if err := a.printf(""); err != nil {
		return err
	}
	table = a.table("FINGERPRINT", "~CONSUMER", ">COUNT", "NEWEST", "~ERROR", "~TYPE")
	for _, g := range s.Groups {
		for _, consumer := range slices.Sorted(maps.Keys(g.Consumers)) {
			table.Row(terminal.Cell(g.Fingerprint, 12), terminal.Cell(string(consumer), 32), terminal.Number(g.Consumers[consumer]),
				terminal.Age(now, g.Newest), terminal.Cell(cause(g.Class, g.Error), 80), terminal.Cell(g.Type, 32))
		}
	}
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	if s.Ungrouped > 0 {
		a.say("%s more of further kinds", terminal.Number(s.Ungrouped))
	}
	return nil
}

// replaysText is "3 letters are being replayed to payment: 2 waiting, 1 running; the first since 5s ago; 2 workers".
func replaysText(r dlq.Replays, now time.Time) string {
	var parts []string
	total := 0
	for _, p := range []struct {
		n    int
		what string
	}{
		{r.Waiting, "waiting"},
		{r.Running, "running"},
		{r.Retrying, "retrying"},
		{r.Lost, "lost, replay them again"},
		{r.Handled, "handled, the next replay removes them"},
	} {
		if p.n > 0 {
			parts = append(parts, terminal.Number(p.n)+" "+p.what)
			total += p.n
		}
	}
	to := terminal.Printable(string(r.Consumer))
	if r.Consumer == dlq.ConsumerOutbox {
		to = "a relay"
	}
	text := fmt.Sprintf("%s being replayed to %s: %s; the first sent %s", terminal.Count(total, "letter is", "letters are"),
		to, strings.Join(parts, ", "), terminal.Age(now, r.Oldest))
	if r.Workers != nil {
		text += "; " + terminal.Count(*r.Workers, "worker is there", "workers are there")
	}
	return text
}

// waiting is "2 events wait for it, 1 until their retry is due; of 4 more nothing tells whether they were handled".
func waiting(s dlq.Stranded) string {
	text := fmt.Sprintf("%s events wait for it, %s until their retry is due", terminal.Number(s.Deferred+s.Arrived), terminal.Number(s.Deferred))
	if s.Unknown > 0 {
		text += fmt.Sprintf("; of %s more nothing tells whether they were handled", terminal.Number(s.Unknown))
	}
	return text
}

type dlqExportCmd struct {
	dlqFilter
	// JSON lines are the only format; the flag is taken as everywhere else.
	jsonFlag
}

// Run writes JSON lines on stdout.
func (c *dlqExportCmd) Run(ctx context.Context, a *app) error {
	n := 0
	err := a.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) (err error) {
		n, err = q.Export(ctx, a.json, c.filter(a.now()))
		return err
	})
	if err = a.rowsOnly(err, "exported"); err == nil || errors.Is(err, errSilent) {
		a.say("%s exported", terminal.Number(n))
	}
	return err
}
