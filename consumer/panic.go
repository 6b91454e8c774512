package consumer

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/farandole/farandole/event"
)

// contain turns a panic into an error, so that one event cannot take the
// process and every other event in it down.
func contain(ctx context.Context, h handler, e event.Event) (s Step, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{value: r, at: panickedAt()}
		}
	}()
	return h(ctx, e)
}

// panicError matches [ErrPanic] and, if the value was an error, that.
type panicError struct {
	value any
	at    string
}

func (p *panicError) Error() string {
	return fmt.Sprintf("%s: %s%s", ErrPanic.Error(), fmt.Sprint(p.value), p.at)
}

// panicFrames is how many callers a panic's text names.
const panicFrames = 6

// panickedAt lists who called whom when the panic came, a line each, without
// addresses: the same panic has the same text, and dead letters group by it.
func panickedAt() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var text strings.Builder
	for n := 0; n < panicFrames; {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "consumer.contain") {
			break // below it is the consumer, not the handler
		}
		if !strings.HasPrefix(f.Function, "runtime.") {
			fmt.Fprintf(&text, "\n  at %s (%s:%d)", path.Base(f.Function), filepath.Base(f.File), f.Line)
			n++
		}
		if !more {
			break
		}
	}
	return text.String()
}

func (p *panicError) Unwrap() []error {
	if err, ok := p.value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}
