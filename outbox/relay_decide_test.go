package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	cfg := RelayConfig{MaxAttempts: 3, BaseDelay: time.Second, MaxDelay: time.Minute}
	waits := func(d time.Duration) decision { return decision{status: Pending, waits: true, delay: d} }
	blamed := func(d time.Duration) decision { return decision{status: Pending, blamed: true, waits: true, delay: d} }
	for name, tt := range map[string]struct {
		err      error
		attempts int
		age      time.Duration
		random   float64
		want     decision
	}{
		"stored":                          {nil, 0, 0, 1, decision{status: Published}},
		"stored after failures":           {nil, 2, time.Hour, 1, decision{status: Published}},
		"not sent":                        {errUnsent, 2, time.Hour, 1, decision{status: Pending}},
		"nats down, young row":            {bus.ErrUnavailable, 0, time.Millisecond, 1, waits(time.Second)},
		"nats down, waits as long again":  {bus.ErrUnavailable, 0, 20 * time.Second, 1, waits(20 * time.Second)},
		"nats down, old row":              {bus.ErrUnavailable, 0, time.Hour, 0.5, waits(30 * time.Second)},
		"created in the future":           {bus.ErrUnavailable, 0, -time.Hour, 1, waits(time.Second)},
		"no attempt is spent":             {bus.ErrNoStream, 2, 0, 0, waits(0)},
		"denied":                          {bus.ErrDenied, 2, 0, 1, waits(time.Second)},
		"full":                            {bus.ErrStreamFull, 2, 0, 1, waits(time.Second)},
		"busy":                            {bus.ErrBusy, 2, 0, 1, waits(time.Second)},
		"no stream":                       {bus.ErrNoStream, 2, 0, 1, waits(time.Second)},
		"closed":                          {bus.ErrClosed, 2, 0, 1, waits(time.Second)},
		"a conflict, last time":           {bus.ErrConflict, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"anything else":                   {errors.New("?"), 0, 0, 1, blamed(time.Second)},
		"anything else, last time":        {errors.New("?"), 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"no stream, others have one":      {fmt.Errorf("%w: %w", errNotStored, bus.ErrNoStream), 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"unanswered, others are answered": {fmt.Errorf("%w: %w", errUnanswered, bus.ErrUnavailable), 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"not admitted":                    {event.ErrNotAdmitted, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"another event has its id":        {bus.ErrIDTaken, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"too large, first time":           {bus.ErrTooLarge, 0, time.Hour, 1, blamed(time.Second)},
		"too large, second time":          {fmt.Errorf("publish: %w", bus.ErrTooLarge), 1, time.Hour, 0.5, blamed(time.Second)},
		"too large, last time":            {bus.ErrTooLarge, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"refused, with attempts too many": {bus.ErrRefused, 9, 0, 1, decision{status: DeadLetter, blamed: true}},
		"not a subject":                   {event.ErrInvalidName, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
		"unreadable":                      {errUnreadable, 2, 0, 1, decision{status: DeadLetter, blamed: true}},
	} {
		if got := decide(tt.err, tt.attempts, tt.age, cfg, tt.random); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	cfg.MaxAttempts = 1 << 20
	if got := decide(bus.ErrTooLarge, 100_000, 0, cfg, 1); got != blamed(time.Minute) {
		t.Errorf("after very many attempts: %+v", got)
	}
}

func TestStory(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, time.January, 2, 15, 4, 5, 0, time.UTC)
	story := "somebody else's"
	for n := 1; n <= 2; n++ {
		status := Pending
		if n == 2 {
			status = DeadLetter
		}
		story = addAttempt(story, n, fmt.Errorf("%w: \x00\xff%s", bus.ErrTooLarge, strings.Repeat("é", event.MaxErrorText)), status, at, "here")
	}
	var got []event.Attempt
	if err := json.Unmarshal([]byte(story), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("%d attempts are told, want 2", len(got))
	}
	for i, a := range got {
		if a.Number != i+1 || !a.At.Equal(at) || a.Class != "too-large" || len(a.Error) > event.MaxErrorText || a.Host != "here" {
			t.Errorf("attempt is %+v", a)
		}
	}
	if got[0].Reason != "" || got[1].Reason != event.ReasonExhausted {
		t.Errorf("reasons are %q and %q", got[0].Reason, got[1].Reason)
	}
}
