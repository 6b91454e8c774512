package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
)

// outboxed is a system with an outbox.
type outboxed struct {
	system
	db     *sql.DB
	outbox *outbox.Outbox
	// named are the flags that name the outbox.
	named []string
}

func newOutboxed(t *testing.T, target string, named ...string) outboxed {
	t.Helper()
	s := outboxed{system: newSystem(t), named: named}
	d, err := database.Open(target)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	s.db = d.DB
	s.outbox, err = d.Outbox(outbox.Config{Names: s.Names(), Source: "/shop"})
	must(t, err)
	must(t, s.outbox.Migrate(t.Context()))
	return s
}

// stored is one in a directory as serve has it.
func stored(t *testing.T) outboxed {
	t.Helper()
	dir := t.TempDir()
	return newOutboxed(t, filepath.Join(dir, orderFile), "--store", dir)
}

// parkRow adds a row that a relay has given up, and returns its id.
func (s outboxed) parkRow(t *testing.T, e event.Event, attempts ...event.Attempt) string {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	must(t, err)
	must(t, s.outbox.Add(t.Context(), tx, e))
	story, err := json.Marshal(attempts)
	must(t, err)
	key := string(event.EventKeyOf(e))
	_, err = tx.ExecContext(t.Context(), "UPDATE outbox SET status = 'DEAD_LETTER', attempts = $1, story = $2 WHERE message_id = $3",
		len(attempts), string(story), key)
	must(t, err)
	must(t, tx.Commit())
	return "outbox." + key
}

func (s outboxed) status(t *testing.T, id string) (status string) {
	t.Helper()
	err := s.db.QueryRowContext(t.Context(), "SELECT status FROM outbox WHERE message_id = $1", strings.TrimPrefix(id, "outbox.")).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return "gone"
	}
	must(t, err)
	return status
}

// dlq runs a command with the flags of the outbox.
func (s outboxed) dlq(t *testing.T, args ...string) result {
	t.Helper()
	return s.run(t, "", append(append([]string{"dlq"}, args...), s.named...)...)
}

// nowhere runs it while the server is down.
func (s outboxed) nowhere(t *testing.T, args ...string) result {
	t.Helper()
	args = append(append([]string{"dlq"}, args...), s.named...)
	return farandole(t, "", append(args, "--server", "nats://127.0.0.1:1", "--wait", "50ms", "--prefix", s.Names().Prefix)...)
}

func tooLarge(n int, reason string) event.Attempt {
	return event.Attempt{Number: n, At: time.Now().Add(-time.Hour), Class: "TooLarge", Error: fmt.Sprint("attempt ", n), Reason: reason}
}

func TestParkedRows_are_listed_beside_dead_letters(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) outboxed{
		"SQLite": stored,
		"Postgres": func(t *testing.T) outboxed {
			t.Helper()
			target := pgtest.Database(t)
			return newOutboxed(t, target, "--database-url", target)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			letter := s.park(t, placedEvent(t, s.system, "ord-1", `{}`), failureOf("boom"))
			first := s.parkRow(t, placedEvent(t, s.system, "ord-2", `{}`), tooLarge(1, ""), tooLarge(2, event.ReasonPermanent))
			second := s.parkRow(t, placedEvent(t, s.system, "ord-3", `{}`), tooLarge(1, ""))

			got := s.dlq(t, "list")
			if got.code != exitDone || strings.Count(got.out, "\n") != 4 || !strings.Contains(got.err, "showing 3 of 3") {
				t.Errorf("list: %+v", got)
			}
			for _, want := range []string{letter, first, second, "permanent", "exhausted", "order.placed.v1", "attempt 2", "1h ago"} {
				if !strings.Contains(got.out, want) {
					t.Errorf("list: no %q in\n%s", want, got.out)
				}
			}
			for _, tt := range []struct {
				args []string
				want []string
			}{
				{nil, []string{second, first, letter}},
				{[]string{"--consumer", "outbox"}, []string{second, first}},
				{[]string{"--consumer", "payment"}, []string{letter}},
				{[]string{"--reason", "permanent"}, []string{first}},
				{[]string{"--key", "ord-3", "--type", "order.placed.v1"}, []string{second}},
				{[]string{"--older", "30m"}, []string{second, first}},
				{[]string{"--newer", "30m"}, []string{letter}},
				{[]string{"--class", "TooLarge", "--text", "TEMPT 1"}, []string{second}},
				{[]string{"--fingerprint", "0123456789ab"}, nil},
			} {
				l := s.list(t, append(tt.args, s.named...)...)
				var ids []string
				for _, e := range l.Entries {
					ids = append(ids, e.ID)
				}
				total := 3
				if fmt.Sprint(tt.args) == "[--consumer outbox]" { // nobody asks NATS
					total = 2
				}
				if fmt.Sprint(ids) != fmt.Sprint(tt.want) || l.Total != total || l.Matching != len(tt.want) {
					t.Errorf("list %v: %v of %d, %d matching", tt.args, ids, l.Total, l.Matching)
				}
			}
			if l := s.list(t); len(l.Entries) != 1 || l.Total != 1 { // without the flags
				t.Errorf("without an outbox: %+v", l)
			}
			if got := s.dlq(t, "export"); got.code != exitDone || strings.Count(got.out, "\n") != 3 ||
				strings.Index(got.out, first) > strings.Index(got.out, second) {
				t.Errorf("export: %+v", got)
			}
			if got := s.dlq(t, "stats"); got.code != exitDone || !strings.Contains(got.out, "outbox: 2 parked (1 exhausted, 1 permanent); 0 to publish") ||
				!strings.Contains(got.out, "3 dead letters") {
				t.Errorf("stats: %+v", got)
			}
			var doc struct {
				Total  int
				Outbox struct{ Parked, Pending int }
			}
			must(t, json.Unmarshal([]byte(s.dlq(t, "stats", "--json").out), &doc))
			if doc.Total != 3 || doc.Outbox.Parked != 2 || doc.Outbox.Pending != 0 {
				t.Errorf("stats: %+v", doc)
			}
		})
	}
}

func TestParkedRows_long_list(t *testing.T) {
	t.Parallel()
	s := stored(t)
	for i := range 5 {
		s.parkRow(t, placedEvent(t, s.system, event.Key(fmt.Sprint("ord-", i)), `{}`), tooLarge(1, ""))
	}
	s.parkMany(t, 5)
	if got := s.dlq(t, "list", "--limit", "3"); strings.Count(got.out, "\n") != 7 || !strings.Contains(got.err, "showing 6 of 10; --limit, --all or --cursor") {
		t.Errorf("%+v", got)
	}
	page := s.list(t, append(s.named, "--limit", "3")...)
	rest := s.list(t, append(s.named, "--cursor", fmt.Sprint(page.Next))...)
	if len(page.Entries) != 6 || len(rest.Entries) != 2 || rest.Matching != 10 || rest.Total != 10 {
		t.Errorf("%+v, then %+v", page, rest)
	}
	if l := s.list(t, append(s.named, "--all")...); len(l.Entries) != 10 {
		t.Errorf("all: %d", len(l.Entries))
	}
	if got := s.dlq(t, "list", "--limit", "3", "--consumer", "outbox"); !strings.Contains(got.err, "showing 3 of 5; --limit, --all or --cursor 3 for more") {
		t.Errorf("%+v", got)
	}
}

func TestParkedRows_show(t *testing.T) {
	t.Parallel()
	s := stored(t)
	const evil = "\x1b[2J\u202e"
	last := tooLarge(1, event.ReasonPermanent)
	last.Error = evil
	id := s.parkRow(t, placedEvent(t, s.system, "ord-1", exactData), tooLarge(1, ""), tooLarge(2, ""), last)
	got := s.dlq(t, "show", id)
	assertHarmless(t, got)
	for _, want := range []string{
		id, "parked in the outbox", "consumer       outbox", "permanent", `\u001b[2J\u202e`, "dead-lettered  2 times", "attempts       1 failed",
		"attempt 1", "attempt 2", "order.placed.v1", "/shop", "ce-id: ", "\n  " + exactData + "\n",
	} {
		if want == "/shop" {
			want = s.Names().EventSubject("order.placed.v1", "ord-1")
		}
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
	var doc struct {
		ID     string
		Letter struct {
			Data     string
			Attempts []event.Attempt
		}
	}
	must(t, json.Unmarshal([]byte(s.dlq(t, "show", id, "--json").out), &doc))
	if doc.ID != id || doc.Letter.Data != exactData || len(doc.Letter.Attempts) != 3 {
		t.Errorf("JSON: %+v", doc)
	}
	if got := s.dlq(t, "show", id, "-o", "-"); got.out != exactData {
		t.Errorf("data: %+v", got)
	}
	if got := s.dlq(t, "show", "outbox.none"); got.code != exitFailed || !strings.Contains(got.err, "is not parked in this outbox") {
		t.Errorf("missing: %+v", got)
	}
}

func TestParkedRows_replay_and_discard(t *testing.T) {
	t.Parallel()
	s := stored(t)
	var ids []string
	for i := range 4 {
		ids = append(ids, s.parkRow(t, placedEvent(t, s.system, event.Key(fmt.Sprint("ord-", i)), `{}`), tooLarge(1, "")))
	}
	letter := s.park(t, placedEvent(t, s.system, "ord-1", `{}`), failureOf("boom"))

	for _, args := range [][]string{{"replay"}, {"replay", ids[0], "--key", "ord-1"}, {"replay", ids[0], "--all"}, {"discard", "--yes"}} {
		if got := s.dlq(t, args...); got.code != exitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := s.dlq(t, "replay", "--all", "--dry-run"); got.code != exitDone || !strings.Contains(got.err, "5 selected: 5 would replay") {
		t.Errorf("dry run: %+v", got)
	}
	got := s.dlq(t, "replay", ids[0], letter, "--rate", "1000", "--json")
	if got.code != exitDone || !strings.Contains(got.out, `{"id":"`+ids[0]+`","status":"pending","replay":1}`) || !strings.Contains(got.out, `"status":"replayed"`) ||
		!strings.Contains(got.err, "a relay publishes the pending rows") || !strings.Contains(got.err, "2 selected: 1 pending, 1 replayed") {
		t.Errorf("both kinds: %+v", got)
	}
	if got := s.dlq(t, "replay", ids[0]); got.code != exitDone || !strings.Contains(got.err, "1 in progress") {
		t.Errorf("again: %+v", got)
	}
	if got := s.dlq(t, "replay", "--key", "ord-1"); got.code != exitDone || !strings.Contains(got.err, "1 pending") {
		t.Errorf("by key: %+v", got)
	}
	if got := s.dlq(t, "discard", ids[2]); got.code != exitUsage || s.status(t, ids[2]) != "DEAD_LETTER" {
		t.Errorf("without a yes: %+v", got)
	}
	if got := s.dlq(t, "discard", ids[2], "--yes", "--dry-run"); got.code != exitDone || !strings.Contains(got.err, "1 would discard") {
		t.Errorf("dry run: %+v", got)
	}
	if got := s.dlq(t, "discard", "--all", "--yes"); got.code != exitDone || !strings.Contains(got.err, "5 selected: 2 discarded, 3 in progress") {
		t.Errorf("all: %+v", got)
	}
	for i, want := range []string{"PENDING", "PENDING", "gone", "gone"} {
		if got := s.status(t, ids[i]); got != want {
			t.Errorf("row %d is %s, want %s", i, got, want)
		}
	}
}

// A row that is replayed is a letter until it is published, and short ids name it.
func TestParkedRows_replay_is_seen_and_taken_back(t *testing.T) {
	t.Parallel()
	s := stored(t)
	e := placedEvent(t, s.system, "ord-1", `{}`)
	id := s.parkRow(t, e, tooLarge(1, ""), tooLarge(2, event.ReasonExhausted))
	short, key := id[:len("outbox.")+8], strings.TrimPrefix(id, "outbox.")
	if got := s.dlq(t, "replay", short); got.code != exitDone || !strings.Contains(got.err, "1 pending") {
		t.Errorf("replay: %+v", got)
	}
	for _, tt := range []struct {
		args []string
		out  string
	}{
		{[]string{"list"}, "replayed, waiting"},
		{[]string{"list", "--json"}, `"replay":{"number":1,"at":`},
		{[]string{"show", short}, "replayed, waiting for a relay; sent "},
		{[]string{"show", key[:8]}, "dead-lettered  once"},
		{[]string{"stats"}, "outbox: 0 parked, 1 being replayed (1 exhausted); 1 to publish"},
		{[]string{"stats"}, "1 letter is being replayed to a relay: 1 waiting"},
		{[]string{"stats", "--json"}, `"replays":[{"consumer":"outbox","waiting":1,`},
		{[]string{"replay", key[:8], "--cancel"}, id + "  taken back"},
		{[]string{"replay", id, "--cancel"}, id + "  not replayed"},
		{[]string{"list"}, "exhausted"},
	} {
		if got := s.dlq(t, tt.args...); got.code != exitDone || !strings.Contains(got.out, tt.out) {
			t.Errorf("%v: %+v, want %q", tt.args, got, tt.out)
		}
	}
	if got := s.status(t, id); got != "DEAD_LETTER" {
		t.Errorf("taken back it is %s", got)
	}

	letter := s.park(t, e, failureOf("boom"))
	for _, command := range []string{"show", "replay"} {
		if got := s.dlq(t, command, key[:8]); got.code == exitDone || !strings.Contains(got.err, "ambiguous id: "+key[:8]+" is one of "+id+", "+letter) {
			t.Errorf("%s of an id that two stores have: %+v", command, got)
		}
	}
	if got := s.nowhere(t, "replay", key[:8]); got.code != exitFailed || !strings.Contains(got.err, "cannot connect") {
		t.Errorf("of a store that is not there: %+v", got)
	}
	r, err := outbox.NewRelay(s.outbox, s.Bus, outbox.RelayConfig{})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if got := s.dlq(t, "replay", id, "--wait", "--timeout", "1m"); got.code != exitDone || !strings.Contains(got.err, "1 handled") || s.status(t, id) != "PUBLISHED" {
		t.Errorf("published: %+v", got)
	}
	stop()
	must(t, <-ended)
	if got := s.dlq(t, "show", id); got.code != exitFailed || !strings.Contains(got.err, "is not parked in this outbox") {
		t.Errorf("published: %+v", got)
	}
}

func TestParkedRows_without_a_server(t *testing.T) {
	t.Parallel()
	s := stored(t)
	first := s.parkRow(t, placedEvent(t, s.system, "ord-1", `{}`), tooLarge(1, ""))
	second := s.parkRow(t, placedEvent(t, s.system, "ord-2", `{}`), tooLarge(1, ""))
	third := s.parkRow(t, placedEvent(t, s.system, "ord-3", `{}`), tooLarge(1, ""))

	for _, tt := range []struct {
		args      []string
		code      int
		out, says string
	}{
		{[]string{"list"}, exitFailed, first, "only the outbox; dead letters in NATS were not listed: bus: cannot connect"},
		{[]string{"list", "--json"}, exitFailed, `"matching":3,"total":3,"next":0}`, "were not listed"},
		{[]string{"stats"}, exitFailed, "3 parked", "were not counted"},
		{[]string{"stats", "--json"}, exitFailed, `"outbox":{"parked":3`, "were not counted"},
		{[]string{"export"}, exitFailed, second, "were not exported"},
		{[]string{"list", "--consumer", "outbox"}, exitDone, first, "showing 3"},
		{[]string{"list", "--consumer", "payment"}, exitFailed, "", "were not listed"},
		{[]string{"show", first}, exitDone, first, ""},
		{[]string{"show", "payment.x"}, exitFailed, "", "cannot connect"},
		{[]string{"replay", first}, exitDone, "", "1 pending"},
		{[]string{"discard", second, "--yes"}, exitDone, "", "1 discarded"},
		{[]string{"replay", "--all"}, exitFailed, "", "1 pending"},
		{[]string{"replay", "--all"}, exitFailed, "", "were not replayed"},
	} {
		got := s.nowhere(t, tt.args...)
		if got.code != tt.code || !strings.Contains(got.out, tt.out) || !strings.Contains(got.err, tt.says) {
			t.Errorf("%v: %+v, want %d, %q and %q", tt.args, got, tt.code, tt.out, tt.says)
		}
		if tt.args[len(tt.args)-1] == "--json" && !json.Valid([]byte(got.out)) {
			t.Errorf("%v: %s", tt.args, got.out)
		}
	}
	for id, want := range map[string]string{first: "PENDING", second: "gone", third: "PENDING"} {
		if got := s.status(t, id); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
}

func TestOutboxFlags_say_what_is_wrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte(strings.Repeat("not a database", 100)), 0o600))
	d, err := database.Open(filepath.Join(dir, "empty.db"))
	must(t, err)
	must(t, d.Close())
	for _, tt := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"--store", dir}, exitFailed, "no outbox"}, // no order.db in it
		{[]string{"--store", filepath.Join(dir, "missing")}, exitFailed, "no outbox"},
		{[]string{"--store", text}, exitFailed, "not a SQLite database"},
		{[]string{"--store", filepath.Join(dir, "empty.db")}, exitFailed, "no such table"},
		{[]string{"--store", filepath.Join(dir, "empty.db"), "--table-prefix", "Shop;"}, exitUsage, "Prefix"},
		{[]string{"--store", dir, "--database-url", "postgres://h/db"}, exitUsage, "leave one out"},
		{[]string{"--database-url", "mysql://u:hunter2@h/db"}, exitUsage, "postgres://"},
		{[]string{"--database-url", "postgres://u:hunter2@h:port/db"}, exitFailed, "invalid port"},
	} {
		got := farandole(t, "", append([]string{"dlq", "list"}, tt.args...)...)
		if got.code != tt.want || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, "hunter2") || got.out != "" {
			t.Errorf("%v: %+v, want %d saying %q", tt.args, got, tt.want, tt.says)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, orderFile)); err == nil {
		t.Error("a file was made")
	}
}
