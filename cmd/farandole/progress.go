package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows on stderr how far many small steps have come: a bar on a terminal, else a
// line from time to time. What is over within a moment shows nothing.
type progress struct {
	app  *app
	verb string
	said time.Time
	note atomic.Pointer[string]

	pool *mpb.Progress
	bar  *mpb.Bar
}

func newProgress(a *app, verb string) *progress {
	return &progress{app: a, verb: verb, said: a.now()}
}

// set says that so many of total steps are done, and in a note what that means.
func (p *progress) set(done, total int, note string) {
	p.note.Store(&note)
	now := int64(min(done, total-1)) // the bar ends with the run
	switch {
	case total < 2:
	case p.bar != nil:
		p.bar.SetCurrent(now)
	case p.app.live:
		p.pool = mpb.New(mpb.WithOutput(p.app.err), mpb.WithWidth(24))
		p.bar = p.pool.AddBar(int64(total),
			mpb.PrependDecorators(decor.Name(p.verb, decor.WC{C: decor.DindentRight | decor.DextraSpace})),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + *p.note.Load() })),
			mpb.BarRemoveOnComplete(),
		)
		p.bar.SetCurrent(now)
	case p.app.now().Sub(p.said) >= plainEvery:
		p.said = p.app.now()
		p.app.say("%s: %s", p.verb, note)
	}
}

// printf is [app.printf], above a bar that is on the same terminal.
func (p *progress) printf(format string, args ...any) error {
	if p.bar == nil || !p.app.shows {
		return p.app.printf(format, args...)
	}
	_, err := fmt.Fprintf(p.pool, format+"\n", args...)
	return err
}

// close takes the bar away.
func (p *progress) close() {
	if p.bar == nil {
		return
	}
	p.bar.Abort(true)
	p.pool.Wait()
	p.bar = nil
}
