package consumer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

func TestNeedsOf(t *testing.T) {
	t.Parallel()
	n := event.Names{Prefix: "shop"}
	out := []*nats.Msg{
		{Subject: n.EventSubject("payment.captured.v1", "a")},
		{Subject: n.EventSubject("payment.declined.v1", "a")},
		{Subject: n.TimerSubject("order", "deadline", "a")},
	}
	want := []string{"", "order.placed.v1", "order.placed.v1 events", "order.placed.v1 timer"}
	if got := needsOf(n, "order.placed.v1", out); !slices.Equal(got, want) {
		t.Errorf("needs are %q, want %q", got, want)
	}
	if got := needsOf(n, "", nil); !slices.Equal(got, []string{""}) {
		t.Errorf("an undecodable event needs %q", got)
	}
}

func TestWhatTheStoreRefusesIsNoOutage(t *testing.T) {
	t.Parallel()
	store := &jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "message too large"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("%w: %w", bus.ErrTooLarge, store), false},
		{fmt.Errorf("%w: %w", bus.ErrUnavailable, store), true},
		{fmt.Errorf("%w: %w", bus.ErrRefused, &jetstream.APIError{Code: 400, ErrorCode: 10165}), false},
	} {
		if got := isOutage(tt.err); got != tt.want {
			t.Errorf("%v is an outage: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestDoubtsTellOneEventFromAnOutage(t *testing.T) {
	t.Parallel()
	now := time.Now()
	events, timers := []string{"", "a", "a events"}, []string{"", "a", "a events", "a timer"}
	pass := func(x *doubts, needs []string) { x.pass("other", func() []string { return needs }) }
	fail := func(x *doubts, needs []string, wantAlone int, wantOthers bool) {
		t.Helper()
		if alone, others := x.fail("bad", needs, now); alone != wantAlone || others != wantOthers {
			t.Errorf("alone %d, others %v; want %d, %v", alone, others, wantAlone, wantOthers)
		}
	}
	x := &doubts{fade: time.Minute}
	pass(x, timers) // before the trouble: says nothing
	fail(x, timers, 0, false)
	fail(x, timers, 0, false) // nobody got through
	pass(x, events)
	fail(x, timers, 0, false) // but not to the timers
	pass(x, timers)
	fail(x, timers, 1, true)
	fail(x, timers, 1, false)
	pass(x, timers)
	fail(x, timers, 2, true)
	if n := x.size(); n != 1 {
		t.Errorf("%d alone, want 1", n)
	}
	fail(x, events, 0, false) // it needs something else now
	x.sweep(now.Add(time.Hour))
	if n := len(x.by); n != 0 || x.any.Load() {
		t.Errorf("%d doubts are left after it went elsewhere", n)
	}
	fail(x, events, 0, false)
	x.pass("bad", func() []string { return events })
	if len(x.by) != 0 {
		t.Error("doubted although it got through")
	}
}
