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
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

type dlqShowCmd struct {
	jsonFlag
	ID   string `arg:"" help:"<consumer>.<event key>, outbox.<message id> for a parked row, the event key, or how one of these begins."`
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
		return printCase(a, found)
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

// caseText is a case for people: a text that grows.
type caseText struct {
	strings.Builder
	columns int
	now     time.Time
}

// labels is how wide the names of fields are, with the blanks behind them.
const labels = 15

// field adds a line, or none without a value.
func (t *caseText) field(name, value string) {
	if value != "" {
		t.line(fmt.Sprintf("%-*s", labels, name), value)
	}
}

// line adds a label and a value, which goes on below itself where it is too long.
func (t *caseText) line(label, value string) {
	value = terminal.FirstLine(value)
	if t.columns > 0 {
		value = terminal.Wrap(value, max(t.columns-len(label), 20), 0)
	}
	t.WriteString(label + strings.ReplaceAll(value, "\n", "\n"+strings.Repeat(" ", len(label))) + "\n")
}

// printCase writes everything that is known, bytes of the message made printable.
func printCase(a *app, c dlq.Case) error {
	t := &caseText{columns: a.columns, now: a.now()}
	t.field("id", c.ID)
	t.field("verdict", c.Verdict)
	if c.Letter != nil {
		t.letter(*c.Letter)
	}
	_, err := io.WriteString(a.styled, t.String())
	return err
}

func (t *caseText) letter(r dlq.Record) {
	t.field("consumer", string(r.Consumer))
	t.field("reason", r.Reason)
	if r.Replay != nil {
		t.field("replay", fmt.Sprintf("%d, %s", r.Replay.Number, replayedBy(*r.Replay, t.now)))
	}
	last := event.Attempt{Class: r.Class, Error: r.Error}
	t.field("stored", moment(r.Stored, t.now))
	t.field("error", errorOf(last))
	t.field("first failure", moment(r.FirstFailure, t.now))
	if first := (event.Attempt{Class: r.FirstClass, Error: r.FirstError}); errorOf(first) != errorOf(last) {
		t.field("first error", errorOf(first))
	}
	t.field("dead-lettered", times(r.Count))
	t.field("attempts", fmt.Sprintf("%d failed, %d crashed", r.Failures, r.Crashes))
	t.field("host", strings.TrimSpace(r.Host+" "+r.Version))
	t.field("type", r.Type)
	t.field("key", string(r.Key))
	t.field("event id", r.EventID)
	t.field("source", r.Source)
	t.field("correlation", r.CorrelationID)
	if r.Origin.Stream != "" {
		t.field("origin", fmt.Sprintf("%s %d, %s", r.Origin.Stream, r.Origin.Sequence, moment(r.Origin.Time, t.now)))
	}
	t.field("subject", r.Origin.Subject)
	t.field("fingerprint", r.Fingerprint)
	if r.Cut {
		t.field("note", "not all of the story fitted beside the event")
	}
	t.history(r)
	if strings.Contains(r.Error, "\n") {
		t.WriteString("last error\n")
		t.block(2, []byte(r.Error))
	}
	t.WriteString("headers\n")
	for _, name := range sortedNames(r.Headers) {
		for _, value := range r.Headers[name] {
			fmt.Fprintf(t, "  %s: %s\n", terminal.Printable(name), terminal.Printable(value))
		}
	}
	fmt.Fprintf(t, "data (%s)\n", terminal.Size(len(r.Data)))
	t.block(2, r.Data)
}

// history tells of all attempts, and of what people have changed. An error that was printed
// just before is not printed again.
func (t *caseText) history(r dlq.Record) {
	if len(r.Attempts) > 0 {
		t.WriteString("history\n")
	}
	printed := errorOf(event.Attempt{Class: r.Class, Error: r.Error})
	for _, at := range r.Attempts {
		text := errorOf(at)
		if text == printed {
			text = "the same error"
		} else {
			printed = text
		}
		t.line(fmt.Sprintf("  %2d  %s  ", at.Number, at.At.UTC().Format(time.RFC3339)), text)
	}
	if len(r.Changes) > 0 {
		t.WriteString("changes\n")
	}
	for _, c := range r.Changes {
		what := c.What
		if c.By != "" {
			what += " by " + c.By
		}
		t.line("  "+c.At.UTC().Format(time.RFC3339)+"  ", what)
		if c.Diff != "" {
			t.block(4, []byte(c.Diff))
		}
	}
}

// errorOf is "decode: cannot decode: ...". The class of most errors says nothing.
func errorOf(at event.Attempt) string {
	if at.Class == "error" && at.Error != "" {
		return at.Error
	}
	return strings.Trim(at.Class+": "+at.Error, ": ")
}

// replayedBy is "sent 2026-03-04T05:06:07Z (3m ago) by ada@host".
func replayedBy(r dlq.Replaying, now time.Time) string {
	text := "sent " + moment(r.At, now)
	if r.By != "" {
		text += " by " + r.By
	}
	return text
}

func (t *caseText) block(indent int, data []byte) {
	for _, line := range terminal.Data(data) {
		t.WriteString(strings.TrimRight(strings.Repeat(" ", indent)+line, " ") + "\n")
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
