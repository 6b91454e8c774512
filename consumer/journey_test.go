package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestHandledEventEmitsUnderDerivedIdentity(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		return consumer.Emit(
			paid.New(event.PartitionKey(e), orderData{Amount: 1}),
			reserved.New(event.PartitionKey(e), orderData{Amount: 2}),
		), nil
	}), nil)
	d := draft("o-1")
	d.Correlation = "saga-7"
	d.Extensions = map[string]string{event.ExtTraceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	e := s.publish(d)[0]
	s.settled("payment")

	for i, typ := range []event.Type{paid.Type(), reserved.Type()} {
		out := s.stored(typ)
		if len(out) != 1 {
			t.Fatalf("%d events of type %s, want 1", len(out), typ)
		}
		want := consumer.DerivedIdentity("payment", e, i)
		for name, got := range map[string][2]string{
			"id":          {out[0].ID(), want.ID},
			"source":      {out[0].Source(), "/payment"},
			"correlation": {event.Extension(out[0], event.ExtCorrelation), "saga-7"},
			"causation":   {event.Extension(out[0], event.ExtCausation), "o-1"},
			"traceparent": {event.Extension(out[0], event.ExtTraceparent), event.Extension(e, event.ExtTraceparent)},
			"key":         {string(event.PartitionKey(out[0])), "o-1"},
		} {
			if got[0] != got[1] {
				t.Errorf("%s of %s is %q, want %q", name, typ, got[0], got[1])
			}
		}
	}
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" {
		t.Errorf("mark is %q, want done", m.State)
	}
	if st := p.Stats(); st.Handled != 1 {
		t.Errorf("stats = %+v, want one handled", st)
	}
}

func TestDerivedIDsNeverChange(t *testing.T) {
	t.Parallel()
	cause := bustest.Event(t, draft("o-1"))
	for i, want := range []string{"cec645c1-3a61-56b6-915f-02b9f7fa6da2", "0e5b49ad-14c1-5d6d-8dfe-5b6f90d62b29"} {
		if got := consumer.DerivedIdentity("payment", cause, i).ID; got != want {
			t.Errorf("id %d is %s, want %s: events in flight would take effect twice", i, got, want)
		}
	}
	seen := map[string]string{}
	for _, c := range []event.Consumer{"payment", "audit"} {
		for _, id := range []string{"o-1", "o-2"} {
			for _, i := range []int{0, 1, 10} {
				derived := consumer.DerivedIdentity(c, bustest.Event(t, draft(id)), i).ID
				here := string(c) + " " + id
				if other, taken := seen[derived]; taken {
					t.Errorf("%s and %s share %s", here, other, derived)
				}
				seen[derived] = here
			}
		}
	}
}

// TestOutcomes drives one event to each end it can have.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	tooLarge := strings.Repeat("x", 2<<20)
	for name, tt := range map[string]struct {
		handler func(ctx context.Context, run int) (consumer.Step, error)
		edit    func(*event.Draft)
		runs    int
		reason  string // of the dead letter; "" for handled
		class   string
		text    string // in the error
		skipped uint64
	}{
		"skip": {
			handler: func(context.Context, int) (consumer.Step, error) {
				return consumer.Emit(paid.New("k", orderData{})), consumer.Skip
			},
			runs: 1, skipped: 1,
		},
		"permanent": {
			handler: func(context.Context, int) (consumer.Step, error) {
				return consumer.Step{}, consumer.Permanent(errors.New("no such account"))
			},
			runs: 1, reason: event.ReasonPermanent, class: "error", text: "no such account",
		},
		"always failing": {
			handler: func(context.Context, int) (consumer.Step, error) { return consumer.Step{}, errFlaky },
			runs:    3, reason: event.ReasonExhausted, class: "error", text: "dependency is down",
		},
		"failing once": {
			handler: func(_ context.Context, run int) (consumer.Step, error) {
				if run == 1 {
					return consumer.Step{}, errFlaky
				}
				return consumer.Step{}, nil
			},
			runs: 2,
		},
		"panic": {
			handler: func(context.Context, int) (consumer.Step, error) { panic("nil map") },
			runs:    3, reason: event.ReasonExhausted, class: "panic", text: "nil map",
		},
		"timeout": {
			handler: func(ctx context.Context, run int) (consumer.Step, error) {
				if run > 1 {
					return consumer.Step{}, consumer.Permanent(errors.New("seen enough"))
				}
				<-ctx.Done()
				return consumer.Step{}, ctx.Err()
			},
			runs: 2, reason: event.ReasonPermanent, class: "error", text: "seen enough",
		},
		"expired": {
			handler: func(context.Context, int) (consumer.Step, error) { return consumer.Step{}, nil },
			edit: func(d *event.Draft) {
				d.Extensions = map[string]string{"expirytime": time.Now().Add(-time.Second).Format(time.RFC3339)}
			},
			reason: event.ReasonExpired, text: "event expired",
		},
		"expired, in lower case": {
			handler: func(context.Context, int) (consumer.Step, error) { return consumer.Step{}, nil },
			edit:    func(d *event.Draft) { d.Extensions = map[string]string{event.ExtExpiry: "2026-01-02t03:04:05z"} },
			reason:  event.ReasonExpired, text: "event expired",
		},
		"not expired yet": {
			handler: func(context.Context, int) (consumer.Step, error) { return consumer.Step{}, nil },
			edit: func(d *event.Draft) {
				d.Extensions = map[string]string{"expirytime": time.Now().Add(time.Hour).Format(time.RFC3339)}
			},
			runs: 1,
		},
		"data does not fit": {
			handler: func(context.Context, int) (consumer.Step, error) { return consumer.Step{}, nil },
			edit:    func(d *event.Draft) { d.Data = []byte(`{"amount":"many"}`) },
			reason:  event.ReasonDecode, class: "decode", text: "data of order.placed.v1",
		},
		"emits an invalid event": {
			handler: func(context.Context, int) (consumer.Step, error) {
				return consumer.Emit(paid.New("k", orderData{}), paid.New("", orderData{})), nil
			},
			runs: 1, reason: event.ReasonPermanent, text: "outgoing event 1 of order.placed.v1",
		},
		"emits an illegal type": {
			handler: func(context.Context, int) (consumer.Step, error) {
				return consumer.Emit(event.Define[orderData]("Paid").New("k", orderData{})), nil
			},
			runs: 1, reason: event.ReasonPermanent, text: "Paid",
		},
		"emits an event too large": {
			handler: func(context.Context, int) (consumer.Step, error) {
				return consumer.Emit(paid.New("k", orderData{}), event.Define[string]("payment.receipt.v1").New("k", tooLarge)), nil
			},
			runs: 1, reason: event.ReasonPermanent, text: "too large",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			var runs tally
			cfg := config()
			cfg.HandlerTimeout = 300 * time.Millisecond
			cfg.Version = "1.2.3"
			p := s.start(cfg, handling(func(ctx context.Context, e event.Event) (consumer.Step, error) {
				return tt.handler(ctx, runs.add(e.ID()))
			}), nil)
			d := draft("o-1")
			if tt.edit != nil {
				tt.edit(&d)
			}
			e := s.publish(d)[0]
			if tt.reason == "" {
				bustest.Eventually(t, soon, func() bool { st := p.Stats(); return st.Handled+st.Skipped == 1 })
				s.settled("payment")
				if n := len(s.letters()); n != 0 {
					t.Errorf("%d dead letters, want none", n)
				}
			} else {
				l := s.letter()
				s.settled("payment")
				if l.Reason != tt.reason || !strings.Contains(l.Error, tt.text) || tt.class != "" && l.Class != tt.class {
					t.Errorf("letter says %s, class %s: %s; want %s, class %s: ...%s...", l.Reason, l.Class, l.Error, tt.reason, tt.class, tt.text)
				}
				if want := max(tt.runs, 1); l.Failures != want || len(l.Attempts) != want {
					t.Errorf("letter tells %d failures and %d attempts, want %d", l.Failures, len(l.Attempts), want)
				}
				if l.Version != "1.2.3" || l.EventID != "o-1" {
					t.Errorf("letter is of event %q, version %q", l.EventID, l.Version)
				}
			}
			if n := runs.of("o-1"); n != tt.runs {
				t.Errorf("the handler ran %d times, want %d", n, tt.runs)
			}
			if n := len(s.stored(paid.Type())); n != 0 {
				t.Errorf("%d events were emitted, want none", n)
			}
			if st := p.Stats(); st.Skipped != tt.skipped {
				t.Errorf("skipped = %d, want %d", st.Skipped, tt.skipped)
			}
			want := "done"
			if tt.reason != "" {
				want = "parked"
			}
			if m := s.mark("payment", event.EventKeyOf(e)); m.State != want {
				t.Errorf("mark is %q, want %q", m.State, want)
			}
		})
	}
}

func TestTimeoutIsTheClassOfAnOverrun(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.HandlerTimeout, cfg.Retry.MaxAttempts = 50*time.Millisecond, 1
	s.start(cfg, handling(func(ctx context.Context, _ event.Event) (consumer.Step, error) {
		<-ctx.Done()
		return consumer.Step{}, errors.New("call failed")
	}), nil)
	s.publishN(1)
	if l := s.letter(); l.Class != "timeout" || !strings.Contains(l.Error, "call failed") {
		t.Errorf("letter says class %s: %s; want a timeout that tells the handler's error", l.Class, l.Error)
	}
}

func TestRetryAfterChoosesTheDelay(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	var first time.Time
	gap := make(chan time.Duration, 1)
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()) == 1 {
			first = time.Now()
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 700*time.Millisecond)
		}
		gap <- time.Since(first)
		return consumer.Step{}, nil
	}), nil)
	s.publishN(1)
	if got := <-gap; got < 650*time.Millisecond {
		t.Errorf("came again after %v, want 700ms", got)
	}
}
