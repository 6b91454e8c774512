package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/farandole/farandole/internal/demo"
	"github.com/farandole/farandole/internal/terminal"
)

// plainEvery is how often a line of progress is printed if stderr is no terminal.
const plainEvery = 2 * time.Second

// screen shows the progress of a demo on stderr: a bar on a terminal, else lines.
type screen struct {
	app   *app
	pool  *mpb.Progress // nil without a terminal
	bar   *mpb.Bar
	begun time.Time

	mu   sync.Mutex
	last demo.Progress
	said time.Time
}

func newScreen(a *app, orders int) *screen {
	s := &screen{app: a, begun: a.now()}
	if !a.live {
		return s
	}
	s.pool = mpb.New(mpb.WithOutput(a.err), mpb.WithWidth(24))
	s.bar = s.pool.AddBar(int64(orders),
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return s.snapshot().Phase }, decor.WC{W: 10, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return summary(s.snapshot()) })),
	)
	return s
}

func (s *screen) snapshot() demo.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func summary(p demo.Progress) string {
	return fmt.Sprintf(" %s placed, %s confirmed, %s cancelled, %s dead, %s duplicates, %s crashes",
		terminal.Number(p.Placed), terminal.Number(p.Confirmed), terminal.Number(p.Cancelled),
		terminal.Number(p.DeadLetters), terminal.Number(p.Duplicates), terminal.Number(p.Crashes))
}

// progress shows how far the run has come.
func (s *screen) progress(p demo.Progress) {
	s.mu.Lock()
	changed := p.Phase != s.last.Phase
	s.last = p
	s.mu.Unlock()
	if s.bar != nil {
		s.bar.SetCurrent(int64(min(p.Confirmed+p.Cancelled, p.Orders-1))) // the bar ends with the run
		return
	}
	if changed || s.app.now().Sub(s.said) >= plainEvery {
		s.said = s.app.now()
		s.app.say("%6.1fs  %s: %s", p.Elapsed.Seconds(), p.Phase, summary(p)[1:])
	}
}

// notice shows a sentence above the bar.
func (s *screen) notice(text string) {
	line := fmt.Sprintf("%6.1fs  %s\n", s.app.now().Sub(s.begun).Seconds(), terminal.Printable(text))
	if s.pool == nil {
		fmt.Fprint(s.app.err, line)
		return
	}
	fmt.Fprint(s.pool, line)
}

// close ends the bar, which stays on the terminal as it is.
func (s *screen) close() {
	if s.pool == nil {
		return
	}
	s.bar.Abort(false)
	s.pool.Wait()
}
