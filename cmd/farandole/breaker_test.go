package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/resilience/fleet"
)

// share has consumers share closed breakers, as their processes do.
func share(t *testing.T, s system, names ...string) {
	t.Helper()
	for _, name := range names {
		c, breaker, _ := strings.Cut(name, "/")
		_, err := pauses.New(s.Bus).Update(t.Context(), event.Consumer(c), func(d *pauses.Document) bool {
			d.SetBreaker(breaker, pauses.Breaker{State: pauses.Closed, Term: 1, At: time.Now().UTC(), By: "host 5vjeqg75"})
			return true
		})
		must(t, err)
	}
}

func TestBreakerOpenAndClose(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	share(t, s, "payment/gateway", "search/index")
	got := s.run(t, "", "breaker", "open", "gateway", "--for", "1h", "--reason", "it moves", "--json")
	var doc forced
	must(t, json.Unmarshal([]byte(got.out), &doc))
	if got.code != exitDone || doc.Consumer != "payment" || doc.Breaker != "gateway" || doc.State != "open" || doc.Was != "closed" || !doc.Forced ||
		doc.Why != "it moves" || !strings.Contains(doc.By, "@") || time.Until(doc.Until) < 50*time.Minute {
		t.Errorf("open: %+v", got)
	}
	if !strings.Contains(got.err, "breaker set by an operator") || !strings.Contains(got.err, "it moves") {
		t.Errorf("the log says %q", got.err)
	}
	got = s.run(t, "", "tail", "--type", "breaker.opened.v1", "--from-start", "--no-follow", "--data")
	if got.code != exitDone || !strings.Contains(got.out, `"why":"it moves"`) || !strings.Contains(got.out, `"forced":true`) {
		t.Errorf("told on the bus: %+v", got)
	}
	got = s.run(t, "", "breaker", "open", "payment/gateway")
	if got.code != exitDone || got.out != "payment/gateway: open until further notice\n" {
		t.Errorf("open again: %+v", got)
	}
	got = s.run(t, "", "breaker", "show", "gateway")
	if got.code != exitDone || !strings.Contains(got.out, "open (forced)") || !strings.Contains(got.out, "further notice") || !strings.Contains(got.out, doc.By) {
		t.Errorf("show: %+v", got)
	}
	durable(t, s)
	got = s.run(t, "", "consumer", "show", "payment")
	if got.code != exitDone || !strings.Contains(got.out, "paused until further notice by breaker gateway") {
		t.Errorf("consumer show: %+v", got)
	}
	got = s.run(t, "", "breaker", "close", "gateway", "--reason", "it has moved")
	if got.code != exitDone || got.out != "payment/gateway: closed, was open\n" || !strings.Contains(got.err, "it has moved") {
		t.Errorf("close: %+v", got)
	}
	got = s.run(t, "", "breaker", "close", "gateway")
	if got.code != exitDone || got.out != "payment/gateway: was closed already\n" {
		t.Errorf("close again: %+v", got)
	}
}

func TestBreakerList(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if got := s.run(t, "", "breaker", "list", "--json"); got.code != exitDone || got.out != `{"breakers":[]}`+"\n" {
		t.Errorf("list of none: %+v", got)
	}
	if got := s.run(t, "", "breaker", "list"); got.code != exitDone || got.out != "" || !strings.Contains(got.err, "no breakers") {
		t.Errorf("list of none for people: %+v", got)
	}
	share(t, s, "search/index", "payment/gateway", "payment/bank")
	must(t, func() error {
		_, _, err := fleet.Force{Consumer: "payment", Breaker: "bank", By: "ops@host"}.Open(t.Context(), s.Bus, 0)
		return err
	}())
	got := s.run(t, "", "breaker", "list")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if got.code != exitDone || len(lines) != 4 || !strings.HasPrefix(lines[1], "payment/bank ") || !strings.Contains(lines[1], "open (forced)") ||
		!strings.HasPrefix(lines[2], "payment/gateway ") || !strings.HasPrefix(lines[3], "search/index ") {
		t.Errorf("list: %+v", got)
	}
	var doc struct{ Breakers []fleet.Status }
	got = s.run(t, "", "breaker", "list", "--json")
	must(t, json.Unmarshal([]byte(got.out), &doc))
	if len(doc.Breakers) != 3 || doc.Breakers[0].Name() != "payment/bank" || doc.Breakers[0].State != "open" || doc.Breakers[2].State != "closed" {
		t.Errorf("list: %+v", got)
	}
}

func TestBreakerNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if got := s.run(t, "", "breaker", "open", "gateway"); got.code != exitFailed || !strings.Contains(got.err, "no consumer has shared one yet") {
		t.Errorf("without breakers: %+v", got)
	}
	share(t, s, "payment/gateway", "refunds/gateway", "search/index")
	for _, tt := range []struct {
		args string
		code int
		says []string
	}{
		{"show gatewy", exitFailed, []string{"no such breaker gatewy", "payment/gateway, refunds/gateway, search/index"}},
		{"open gateway", exitFailed, []string{"several breakers are called gateway", "payment/gateway, refunds/gateway"}},
		{"close payment/index", exitFailed, []string{"no such breaker payment/index"}},
		{"open index --for 0s", exitUsage, []string{"--for 0s"}},
		{"open index --for=-1s", exitUsage, []string{"--for -1s"}},
		{"open", exitUsage, []string{"name"}},
		{"show refunds/gateway", exitDone, nil},
	} {
		got := s.run(t, "", append([]string{"breaker"}, strings.Fields(tt.args)...)...)
		for _, want := range tt.says {
			if !strings.Contains(got.err, want) {
				t.Errorf("breaker %s said %q, want %q", tt.args, got.err, want)
			}
		}
		if got.code != tt.code {
			t.Errorf("breaker %s: code %d, want %d", tt.args, got.code, tt.code)
		}
	}
}
