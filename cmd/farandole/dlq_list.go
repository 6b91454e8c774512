package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type dlqListCmd struct {
	jsonFlag
	dlqFilter
	Limit  int    `short:"n" default:"50" help:"Most entries to show."`
	Cursor uint64 `help:"Go on where a page ended: its \"next\"."`
	All    bool   `help:"Show all entries, however many."`
}

// Run lists, newest first.
func (c *dlqListCmd) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 {
		return usageErrorf("dlq list: --limit %d: want at least 1; --all shows everything", c.Limit)
	}
	if c.JSON {
		return c.printJSON(ctx, a)
	}
	return c.print(ctx, a)
}

// pages calls f for each page that is wanted.
func (c *dlqListCmd) pages(ctx context.Context, a *app, f func(dlq.Page) error) error {
	filter := c.filter(a.now())
	o := dlq.PageOptions{Limit: c.Limit, Cursor: c.Cursor}
	if c.All {
		o.Limit = math.MaxInt // pages as large as they can be
	}
	err := a.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) error {
		for {
			page, err := q.List(ctx, filter, o)
			if printErr := f(page); printErr != nil {
				return printErr
			}
			if err != nil || !c.All || page.Next == 0 {
				return err
			}
			o.Cursor = page.Next
		}
	})
	return a.rowsOnly(err, "listed")
}

func (c *dlqListCmd) print(ctx context.Context, a *app) error {
	shown := 0
	var last dlq.Page
	table := newLetterTable(a, a.styled)
	err := c.pages(ctx, a, func(page dlq.Page) error {
		last = page
		shown += len(page.Entries)
		if len(page.Entries) == 0 {
			return nil
		}
		return table.write(page.Entries)
	})
	if err != nil && !errors.Is(err, errSilent) {
		return err
	}
	a.say("%s", c.footer(shown, last))
	return err
}

// footer says what part of the whole was shown.
func (c *dlqListCmd) footer(shown int, p dlq.Page) string {
	matching := terminal.Number(p.Matching)
	if p.Matching < p.Total {
		matching += fmt.Sprintf(" matching (%s in all)", terminal.Number(p.Total))
	}
	switch {
	case p.Total == 0:
		return "no dead letters"
	case p.Next == 0 && shown < p.Matching && c.Cursor == 0:
		return fmt.Sprintf("showing %s of %s; --limit or --all for more", terminal.Number(shown), matching)
	case p.Next != 0:
		return fmt.Sprintf("showing %s of %s; --limit, --all or --cursor %d for more", terminal.Number(shown), matching, p.Next)
	default:
		return fmt.Sprintf("showing %s of %s", terminal.Number(shown), matching)
	}
}

// printJSON writes one document, page by page.
func (c *dlqListCmd) printJSON(ctx context.Context, a *app) error {
	var last dlq.Page
	separator := `{"entries":[`
	listed := c.pages(ctx, a, func(page dlq.Page) error {
		last = page
		for _, e := range page.Entries {
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(a.json, "%s%s", separator, text); err != nil {
				return err
			}
			separator = ","
		}
		return nil
	})
	if listed != nil && !errors.Is(listed, errSilent) {
		return listed
	}
	if separator != "," {
		if _, err := io.WriteString(a.json, separator); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(a.json, `],"matching":%d,"total":%d,"next":%d}`+"\n", last.Matching, last.Total, last.Next); err != nil {
		return err
	}
	return listed
}
