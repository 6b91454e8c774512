package consumer

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

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
