package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// screenApp writes everything for people into one buffer, as a terminal of so many
// columns would show it.
func screenApp(columns int, now time.Time) (*app, *bytes.Buffer) {
	var out bytes.Buffer
	a := newApp(&cli{}, streams{in: strings.NewReader(""), out: &out, err: &out})
	a.columns, a.now = columns, func() time.Time { return now }
	return a, &out
}

// deadLetters are letters as they come: of all states and reasons, and with long values.
func deadLetters(now time.Time) []dlq.Entry {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	workers := func(n int) *int { return &n }
	entries := []dlq.Entry{
		{
			Consumer: "payment", EventKey: "wi5u4uulccv2spuhksaopkcqyow6to6r", Stored: ago(3 * time.Second), Reason: event.ReasonExhausted, Count: 1,
			Type: "order.placed.v1", Key: "ord-7f3a", Class: "net.OpError", Error: "payment: charge: gateway: dial tcp 127.0.0.1:8080: connect: connection refused",
		},
		{
			Consumer: "payment", EventKey: "k5x7abcd34uulccv2spuhksaopkcqyo2", Stored: ago(90 * time.Minute), Reason: event.ReasonExhausted, Count: 12,
			Type: "order.placed.v1", Key: "ord-1", Class: "timeout", Error: "consumer: timeout after 30s",
			Replay: &dlq.Replaying{Number: 12, At: ago(time.Minute), By: "ada@ops-1", State: dlq.ReplayWaiting, Workers: workers(0)},
		},
		{
			Consumer: "inventory", EventKey: "n5h74ulta3en3tzt4bbhqbisv732ijkj", Stored: ago(26 * time.Hour), Reason: event.ReasonPermanent, Count: 2,
			Type: "payment.captured.v1", Key: "a-key-that-somebody-has-made-very-long", Class: "error",
			Error:  `webhook: receiver: 422 Unprocessable Entity: "{\"title\": \"no such account\"}"`,
			Replay: &dlq.Replaying{Number: 2, At: ago(time.Second), By: "ada@ops-1", State: dlq.ReplayRetrying, Workers: workers(3)},
		},
		{
			Consumer: "audit", EventKey: "sc35ifog223t3whadf6ji4i6dzin6fag", Stored: ago(72 * time.Hour), Reason: event.ReasonDecode, Count: 1,
			Class: "decode", Error: "event: not an event: no ce- header, no Content-Type, and the body is no JSON object",
		},
	}
	for i := range entries {
		entries[i].ID = fmt.Sprintf("%s.%s", entries[i].Consumer, entries[i].EventKey)
		entries[i].Fingerprint = strings.Repeat("0123456789ab", 2)[i : i+12]
		entries[i].FirstFailure, entries[i].FirstClass, entries[i].FirstError = entries[i].Stored, entries[i].Class, entries[i].Error
	}
	return entries
}

func TestDeadLetterScreensFitTheTerminal(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	entries := deadLetters(now)
	for name, screen := range map[string]func(a *app) error{
		"list": func(a *app) error { return newLetterTable(a, a.styled).write(entries) },
		"show": func(a *app) error { return printCase(a, shown(entries[1], now)) },
		"stats": func(a *app) error {
			return printStats(a, dlq.Stats{
				Total: 1204, Oldest: now.Add(-72 * time.Hour), Newest: now, LastHour: 12, LastDay: 340, Replayed: 3,
				Consumers: map[event.Consumer]map[string]int{"payment": {"exhausted": 1200, "decode": 1}, "inventory": {"permanent": 3}},
				Groups: []dlq.Group{
					{
						Fingerprint: "0123456789ab", Count: 1203, Newest: now, Class: "net.OpError", Type: "order.placed.v1",
						Error:     "payment: charge: gateway: dial tcp <n>.<n>.<n>.<n>:<n>: connect: connection refused",
						Consumers: map[event.Consumer]int{"payment": 1200, "inventory": 3},
					},
					{Fingerprint: "ba9876543210", Count: 1, Newest: now.Add(-time.Hour), Class: "decode", Consumers: map[event.Consumer]int{"payment": 1}},
				},
				Replays: []dlq.Replays{{Consumer: "inventory", Waiting: 1, Running: 1, Handled: 1, Oldest: now.Add(-time.Minute), Workers: entries[2].Replay.Workers}},
			})
		},
		"replay": func(a *app) error {
			r := results{app: a, named: true, waits: true, progress: newProgress(a, "replay")}
			for i, status := range []dlq.Status{dlq.Handled, dlq.InProgress, dlq.FailedAgain, dlq.Refused} {
				result := dlq.Result{ID: entries[i].ID, Status: status, Selected: 20}
				if status == dlq.Refused {
					result.Err = dlq.ErrRefused
					result.Message = "dlq: refused: the ledger has no mark of it"
				}
				r.add(result)
			}
			sum := dlq.Summary{Selected: 20, Counts: map[dlq.Status]int{dlq.Handled: 12, dlq.FailedAgain: 2, dlq.Refused: 1, dlq.Waiting: 1}}
			if err := r.finish("replay", sum, fmt.Errorf("stopped: %w", dlq.ErrFailedAgain)); !errors.Is(err, dlq.ErrFailedAgain) {
				return err
			}
			return nil
		},
		"discard": func(a *app) error {
			a.in, a.asks = bufio.NewReader(strings.NewReader("n\n")), true
			must(t, a.preview(dlq.Preview{Total: 1203, Examples: entries[:3], Kinds: []dlq.Kind{
				{Consumer: "payment", Type: "order.placed.v1", Class: "net.OpError", Error: "payment: charge: gateway: dial tcp <n>: connect: connection refused", Count: 1200},
				{Consumer: "audit", Class: "decode", Count: 3},
			}}))
			if err := a.confirm(false, "discard 1,203 dead letters for good"); !errors.Is(err, errSilent) {
				return fmt.Errorf("a no is %w", err)
			}
			return nil
		},
	} {
		for _, columns := range []int{80, 120} {
			a, out := screenApp(columns, now)
			must(t, screen(a))
			golden(t, fmt.Sprintf("dlq-%s-%d.txt", name, columns), strings.ReplaceAll(out.String(), "? [y/N] ", "? [y/N]\n"), columns)
		}
	}
}

// shown is one letter with its whole story.
func shown(e dlq.Entry, now time.Time) dlq.Case {
	at := func(n int, ago time.Duration, text string) event.Attempt {
		return event.Attempt{Number: n, At: now.Add(-ago), Class: "timeout", Error: text}
	}
	e.Failures, e.Host, e.EventID, e.Source, e.CorrelationID = 2, "payment-7", "01a22fed-2af1-7764-9089-34055da2133a", "/shop", "ord-1"
	e.Origin = dlq.Origin{Stream: "EVENTS", Sequence: 4711, Subject: "events.order.placed.v1.18.ord-1", Time: now.Add(-2 * time.Hour)}
	return dlq.Case{
		ID: e.ID, Verdict: "replayed, waiting for payment, none of its workers is there; sent 2026-03-04T05:05:07Z as replay 12; no consumer payment exists: start it, and the event goes on",
		Letter: &dlq.Record{
			Entry: e, Headers: map[string][]string{"ce-id": {e.EventID}, "ce-type": {e.Type}}, Data: []byte(`{"order":"ord-1"}`),
			Attempts: []event.Attempt{at(1, 2*time.Hour, "gateway: 503"), at(2, 100*time.Minute, e.Error), at(3, 90*time.Minute, e.Error)},
			Changes: []dlq.Change{
				{At: now.Add(-time.Hour), By: "ada@ops-1", What: "edited", Diff: "- \"order\": \"ord-2\"\n+ \"order\": \"ord-1\"\n"},
				{At: now.Add(-time.Minute), By: "ada@ops-1", What: "moved from pay"},
			},
		},
	}
}

func TestError_column_begins_with_the_cause(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "class", "boom": "boom",
		"charge: gateway: dial tcp 127.0.0.1:80: connection refused":   "connection refused (charge: gateway: dial tcp 127.0.0.1:80)",
		`receiver: 422 Unprocessable Entity: "no: such account"`:       `no: such account (receiver: 422 Unprocessable Entity)`,
		"order 7: not found: EOF":                                      "not found: EOF (order 7)",
		"a: b":                                                         "a: b",
		"panic: boom of the year\nstack\nmore":                         "boom of the year … (panic)",
		"ends with: ":                                                  "ends with:",
		"order: customer_id is missing\norder: 0 items: want 1 to 100": "customer_id is missing … (order)",
	} {
		if got := cause("class", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestShort_ids_are_whole_where_they_would_be_the_same(t *testing.T) {
	t.Parallel()
	e := deadLetters(time.Now())
	twin := e[0]
	twin.EventKey = twin.EventKey[:31] + "z"
	twin.ID = "payment." + string(twin.EventKey)
	row := dlq.Entry{ID: "outbox.a-message-id-that-is-long", Consumer: dlq.ConsumerOutbox, EventKey: "a-message-id-that-is-long"}
	got := shortIDs([]dlq.Entry{e[0], e[1], twin, row})
	want := []string{e[0].ID, "payment.k5x7abcd", twin.ID, "outbox.a-messag"}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%v, want %v", got, want)
	}
}
