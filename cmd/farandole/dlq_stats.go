package main

import (
	"context"
	"maps"
	"slices"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/human"
)

type dlqStatsCmd struct {
	jsonFlag
}

// Run prints counts and kinds of failure.
func (c *dlqStatsCmd) Run(ctx context.Context, a *app) error {
	return a.withQueue(ctx, func(q *dlq.Queue) error {
		s, err := q.Stats(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.printJSON(s)
		}
		return printStats(a, s)
	})
}

func printStats(a *app, s dlq.Stats) error {
	now := a.now()
	if s.Total == 0 {
		a.say("no dead letters")
		return nil
	}
	if err := a.printf("%s dead letters, oldest %s, newest %s; %s in the last hour, %s in the last day\n",
		human.Number(s.Total), human.Age(now, s.Oldest), human.Age(now, s.Newest),
		human.Number(s.LastHour), human.Number(s.LastDay)); err != nil {
		return err
	}
	table := human.NewTable("CONSUMER", "REASON", ">COUNT")
	for _, consumer := range slices.Sorted(maps.Keys(s.Consumers)) {
		for _, reason := range slices.Sorted(maps.Keys(s.Consumers[consumer])) {
			table.Row(human.Cell(string(consumer), 32), human.Cell(reason, 12), human.Number(s.Consumers[consumer][reason]))
		}
	}
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	if err := a.printf(""); err != nil {
		return err
	}
	table = human.NewTable("FINGERPRINT", ">COUNT", ">LAST HOUR", "NEWEST", "TYPE", "CLASS", "ERROR")
	for _, g := range s.Groups {
		table.Row(human.Cell(g.Fingerprint, 12), human.Number(g.Count), human.Number(g.LastHour), human.Age(now, g.Newest),
			human.Cell(g.Type, 32), human.Cell(g.Class, 32), human.Cell(g.Error, 60))
	}
	if _, err := table.WriteTo(a.styled); err != nil {
		return err
	}
	if s.Ungrouped > 0 {
		a.say("%s more of further kinds", human.Number(s.Ungrouped))
	}
	return nil
}

type dlqExportCmd struct {
	dlqFilter
	// JSON lines are the only format; the flag is taken as everywhere else.
	jsonFlag
}

// Run writes JSON lines on stdout.
func (c *dlqExportCmd) Run(ctx context.Context, a *app) error {
	return a.withQueue(ctx, func(q *dlq.Queue) error {
		n, err := q.Export(ctx, a.out, c.filter(a.now()))
		if err != nil {
			return err
		}
		a.say("%s exported", human.Number(n))
		return nil
	})
}
