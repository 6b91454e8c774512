package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
)

// letterTable shows letters, a line each.
type letterTable struct {
	app   *app
	out   io.Writer
	table *terminal.Table
	wide  bool // there is room for event types
}

func newLetterTable(a *app, out io.Writer) *letterTable {
	t := &letterTable{app: a, out: out, wide: a.columns == 0 || a.columns >= 100}
	columns := []string{"ID", "AGE", "STATE", ">COUNT", "KEY", "~ERROR"}
	if t.wide {
		columns = append(columns, "~TYPE")
	}
	t.table = a.table(columns...)
	return t
}

// write writes some letters. The columns of later ones are not narrower.
func (t *letterTable) write(entries []dlq.Entry) error {
	ids, key := shortIDs(entries), 10
	if t.wide {
		key = 18
	}
	for i, e := range entries {
		id, age := ids[i], strings.TrimSuffix(terminal.Age(t.app.now(), e.Stored), " ago")
		if t.app.columns == 0 { // a program reads it, or a person elsewhere
			id, age, key = e.ID, terminal.Age(t.app.now(), e.Stored), 24
		}
		row := []string{
			terminal.Cell(id, 68), age, letterState(e), fmt.Sprint(e.Count),
			terminal.Cell(string(e.Key), key), terminal.Cell(cause(e.Class, e.Error), 80),
		}
		if t.wide {
			row = append(row, terminal.Cell(e.Type, 32))
		}
		t.table.Row(row...)
	}
	_, err := t.table.WriteTo(t.out)
	return err
}

// letterState is a letter's state in a list: its reason, "replayed, 2 workers" while it waits
// for its consumer, "replayed, running".
func letterState(e dlq.Entry) string {
	r := e.Replay
	switch {
	case r == nil:
		return terminal.Cell(e.Reason, 12)
	case r.State == dlq.ReplayWaiting && r.Workers != nil:
		return "replayed, " + terminal.Count(*r.Workers, "worker", "workers")
	default:
		return "replayed, " + r.State
	}
}

// shortKey is how much of an event key a list shows: any command takes it.
const shortKey = 8

// shortIDs cuts the ids of letters, but for those that would be the same.
func shortIDs(entries []dlq.Entry) []string {
	seen := map[string]int{}
	short := func(e dlq.Entry) string {
		if len(e.EventKey) <= shortKey || !utf8.RuneStart(e.EventKey[shortKey]) { // a row may have any message id
			return e.ID
		}
		return strings.TrimSuffix(e.ID, string(e.EventKey)) + string(e.EventKey[:shortKey])
	}
	for _, e := range entries {
		seen[short(e)]++
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		if ids[i] = short(e); seen[ids[i]] > 1 {
			ids[i] = e.ID
		}
	}
	return ids
}

// causeRunes is how long a part of an error has to be to say something by itself.
const causeRunes = 10

// cause turns an error around: what happened comes first, and then, in brackets, on the way to
// what. So a narrow column shows what matters of
// "charge: gateway: dial tcp 127.0.0.1:80: connection refused". Of an error with many
// lines, which may be many errors, that is the first.
func cause(class, text string) string {
	if text == "" {
		return class
	}
	line, rest, _ := strings.Cut(text, "\n")
	parts := colonParts(line)
	from := len(parts) - 1
	for from > 0 && utf8.RuneCountInString(strings.Join(parts[from:], ": ")) < causeRunes {
		from--
	}
	first := strings.Join(parts[from:], ": ")
	if plain, err := strconv.Unquote(first); err == nil {
		first = plain
	}
	first = terminal.FirstLine(strings.TrimSpace(first))
	if strings.TrimSpace(rest) != "" {
		first += " …"
	}
	if from == 0 {
		return first
	}
	return first + " (" + terminal.FirstLine(strings.Join(parts[:from], ": ")) + ")"
}

// colonParts splits an error at its colons, but for those in quotation marks.
func colonParts(text string) (parts []string) {
	begin, quoted := 0, false
	for i := range len(text) {
		switch {
		case text[i] == '"' && (i == 0 || text[i-1] != '\\'):
			quoted = !quoted
		case !quoted && strings.HasPrefix(text[i:], ": "):
			parts = append(parts, text[begin:i])
			begin = i + 2
		}
	}
	if begin > len(text) {
		return append(parts, "")
	}
	return append(parts, text[begin:])
}
