package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

func TestContainTurnsPanicsIntoErrors(t *testing.T) {
	t.Parallel()
	run := func(v any) error {
		_, err := contain(t.Context(), func(context.Context, event.Event) (Step, error) { panic(v) }, event.Event{})
		return err
	}
	boom := run("boom")
	if text := boom.Error(); !strings.Contains(text, "boom\n  at consumer.") || !strings.Contains(text, "(handle_test.go:") || strings.Contains(text, "0x") {
		t.Errorf("a panic reads %q, want its callers without addresses", text)
	}
	if !errors.Is(boom, ErrPanic) {
		t.Errorf("panic of a string gives %v", boom)
	}
	if err := run(io.EOF); !errors.Is(err, ErrPanic) || !errors.Is(err, io.EOF) {
		t.Errorf("panic of an error gives %v, want it to match ErrPanic and the error", err)
	}
	if err := run(Permanent(io.EOF)); decide(err, 1, testPolicy, 0).reason != event.ReasonPermanent {
		t.Errorf("panic(Permanent) is not permanent: %v", err)
	}
	var m map[string]int
	_, err := contain(t.Context(), func(context.Context, event.Event) (Step, error) {
		m["x"] = 1
		return Step{}, nil
	}, event.Event{})
	if !errors.Is(err, ErrPanic) {
		t.Errorf("a runtime error gives %v", err)
	}
}

type declined struct{ code int }

func (d *declined) Error() string { return fmt.Sprint("declined: ", d.code) }

func TestClassOf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"plain":            {errors.New("x"), "error"},
		"formatted":        {fmt.Errorf("x %d", 1), "error"},
		"type":             {&declined{1}, "consumer.declined"},
		"wrapped type":     {fmt.Errorf("charge: %w", &declined{1}), "consumer.declined"},
		"permanent type":   {Permanent(&declined{1}), "consumer.declined"},
		"innermost of two": {fmt.Errorf("%w: %w", io.EOF, &declined{1}), "consumer.declined"},
		"joined":           {errors.Join(io.EOF, &declined{1}), "consumer.declined"},
		"panic":            {&panicError{value: &declined{1}}, "panic"},
		"timeout":          {fmt.Errorf("%w: %w", ErrTimeout, &declined{1}), "timeout"},
		"decode":           {withWish(undecodable, fmt.Errorf("%w: x", event.ErrDecode), 0), "decode"},
		"deadline":         {context.DeadlineExceeded, "context.deadlineExceededError"},
		"wraps nothing":    {&wrapsNothing{}, "consumer.wrapsNothing"},
		"wraps no one":     {&wrapsNoOne{}, "consumer.wrapsNoOne"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := classOf(tt.err); got != tt.want {
				t.Errorf("classOf = %q, want %q", got, tt.want)
			}
		})
	}
}

type wrapsNothing struct{}

func (*wrapsNothing) Error() string { return "nothing" }
func (*wrapsNothing) Unwrap() error { return nil }

type wrapsNoOne struct{}

func (*wrapsNoOne) Error() string   { return "no one" }
func (*wrapsNoOne) Unwrap() []error { return nil }

func TestLaneOf(t *testing.T) {
	t.Parallel()
	at := func(subject string, header nats.Header) *delivery {
		return &delivery{msg: &nats.Msg{Subject: subject, Header: header}, stream: "S", sequence: 7}
	}
	for name, tt := range map[string]struct {
		d    *delivery
		own  bool
		want string
	}{
		"key token":     {at("events.order.placed.v1.o-1", nil), true, "o-1"},
		"redrive":       {at("redrive.payment.order.placed.v1.o-1", nil), true, "o-1"},
		"partition key": {at("orders.new", nats.Header{"ce-partitionkey": {"k"}, "ce-correlationid": {"c"}}), false, "S k"},
		"correlation":   {at("orders.new", nats.Header{"ce-correlationid": {"c"}}), false, "S c"},
		"neither":       {at("orders.new", nil), false, "S 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := laneOf(tt.d, tt.own); got != tt.want {
				t.Errorf("lane = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHealthFadesUnlessReportedAgain(t *testing.T) {
	t.Parallel()
	h := &health{fade: minFade}
	h.set("dlq", io.EOF)
	h.set("ledger", io.ErrUnexpectedEOF)
	at := h.by["dlq"].at
	err := h.err(at)
	if !errors.Is(err, ErrUnhealthy) || !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("err = %v, want both parts", err)
	}
	h.clear("ledger")
	if err := h.err(at); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("err = %v, want what is left", err)
	}
	if err := h.err(at.Add(minFade)); err != nil {
		t.Errorf("err = %v after the fade, want nil", err)
	}
	h.clear("dlq")
	if err := h.err(at); err != nil || h.sick.Load() {
		t.Errorf("err = %v after everything was cleared", err)
	}
}
