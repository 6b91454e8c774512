package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type dlqShowCmd struct {
	jsonFlag
	ID   string `arg:"" help:"<consumer>.<event key>, or the event key; outbox.<message id> for a parked row."`
	Data string `short:"o" placeholder:"FILE" help:"Write the event's data, byte for byte, to this file (- for stdout) and nothing else."`
}

// Run shows the letter and what the ledger says.
func (c *dlqShowCmd) Run(ctx context.Context, a *app) error {
	if c.Data == "-" && isTerminal(a.out) {
		return usageErrorf("dlq show: raw data does not go to a terminal: --data FILE, or pipe it")
	}
	return a.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) error {
		found, err := q.Get(ctx, c.ID)
		if err != nil {
			return err
		}
		return c.write(a, found)
	})
}

func (c *dlqShowCmd) write(a *app, found dlq.Case) error {
	switch {
	case c.Data != "":
		return c.writeData(a, found)
	case c.JSON:
		return a.printJSON(found)
	default:
		return printCase(a.styled, found, a.now())
	}
}

func (c *dlqShowCmd) writeData(a *app, found dlq.Case) error {
	if found.Letter == nil {
		return fmt.Errorf("dlq show: %s has no letter any more, so no data: %s", found.ID, found.Verdict)
	}
	if c.Data == "-" {
		_, err := a.out.Write(found.Letter.Data)
		return err
	}
	if err := os.WriteFile(c.Data, found.Letter.Data, 0o600); err != nil {
		return fmt.Errorf("dlq show: %w", err)
	}
	a.say("%s written to %s", terminal.Size(len(found.Letter.Data)), c.Data)
	return nil
}

// printCase writes everything that is known, bytes of the message made printable.
func printCase(w io.Writer, c dlq.Case, now time.Time) error {
	var sb strings.Builder
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&sb, "%-13s  %s\n", name, terminal.FirstLine(value))
		}
	}
	field("id", c.ID)
	field("verdict", c.Verdict)
	if c.Letter != nil {
		printLetter(&sb, field, *c.Letter, now)
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

func printLetter(sb *strings.Builder, field func(name, value string), r dlq.Record, now time.Time) {
	field("consumer", string(r.Consumer))
	field("reason", r.Reason)
	if r.Replay != nil {
		field("replay", fmt.Sprintf("%d, %s", r.Replay.Number, replayedBy(*r.Replay, now)))
	}
	field("stored", moment(r.Stored, now))
	field("error", r.Class+": "+r.Error)
	field("first failure", moment(r.FirstFailure, now))
	field("first error", strings.TrimPrefix(r.FirstClass+": "+r.FirstError, ": "))
	field("dead-lettered", times(r.Count))
	field("attempts", fmt.Sprintf("%d failed, %d crashed", r.Failures, r.Crashes))
	field("host", strings.TrimSpace(r.Host+" "+r.Version))
	field("type", r.Type)
	field("key", string(r.Key))
	field("event id", r.EventID)
	field("source", r.Source)
	field("correlation", r.CorrelationID)
	if r.Origin.Stream != "" {
		field("origin", fmt.Sprintf("%s %d, %s", r.Origin.Stream, r.Origin.Sequence, moment(r.Origin.Time, now)))
	}
	field("subject", r.Origin.Subject)
	field("fingerprint", r.Fingerprint)
	if r.Cut {
		field("note", "not all of the story fitted beside the event")
	}
	if len(r.Attempts) > 0 {
		sb.WriteString("history\n")
		for _, at := range r.Attempts {
			fmt.Fprintf(sb, "  %2d  %s  %s\n", at.Number, at.At.UTC().Format(time.RFC3339),
				terminal.FirstLine(at.Class+": "+at.Error))
		}
	}
	if len(r.Changes) > 0 {
		sb.WriteString("changes\n")
		for _, c := range r.Changes {
			fmt.Fprintf(sb, "  %s  %s\n", c.At.UTC().Format(time.RFC3339), terminal.FirstLine(strings.TrimSpace(c.What+" by "+c.By)))
			if c.Diff != "" {
				for _, line := range terminal.Data([]byte(c.Diff)) {
					fmt.Fprintf(sb, "    %s\n", line)
				}
			}
		}
	}
	if strings.Contains(r.Error, "\n") {
		sb.WriteString("last error\n")
		block(sb, []byte(r.Error))
	}
	sb.WriteString("headers\n")
	for _, name := range sortedNames(r.Headers) {
		for _, value := range r.Headers[name] {
			fmt.Fprintf(sb, "  %s: %s\n", terminal.Printable(name), terminal.Printable(value))
		}
	}
	fmt.Fprintf(sb, "data (%s)\n", terminal.Size(len(r.Data)))
	block(sb, r.Data)
}

// replayedBy is "sent 2026-03-04T05:06:07Z (3m ago) by ada@host".
func replayedBy(r dlq.Replaying, now time.Time) string {
	text := "sent " + moment(r.At, now)
	if r.By != "" {
		text += " by " + r.By
	}
	return text
}

func block(sb *strings.Builder, data []byte) {
	for _, line := range terminal.Data(data) {
		fmt.Fprintf(sb, "  %s\n", line)
	}
}

func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339) + " (" + terminal.Age(now, t) + ")"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return terminal.Number(n) + " times"
}

func sortedNames(h map[string][]string) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
