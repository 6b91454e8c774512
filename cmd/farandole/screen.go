package main

import (
	"fmt"
	"io"
	"strings"
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
	app     *app
	columns int           // of the terminal; 0 without one
	pool    *mpb.Progress // nil without a terminal
	bar     *mpb.Bar
	begun   time.Time

	mu   sync.Mutex
	last demo.Progress
	said time.Time
}

// newScreen says what will happen.
func newScreen(a *app, story string) *screen {
	s := &screen{app: a, begun: a.now(), columns: columnsOf(a.err)}
	a.say("%s", terminal.Wrap(story, s.columns, 0))
	if !a.live {
		return s
	}
	s.pool = mpb.New(mpb.WithOutput(a.err))
	line := mpb.BarFillerFunc(func(w io.Writer, stat decor.Statistics) error {
		_, err := io.WriteString(w, barLine(s.snapshot(), stat.AvailableWidth))
		return err
	})
	s.bar = s.pool.AddBar(1, mpb.BarFillerMiddleware(func(mpb.BarFiller) mpb.BarFiller { return line }), mpb.BarFillerTrim())
	return s
}

func (s *screen) snapshot() demo.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// barLine is a bar of all that has to happen, with as many counts behind it as there is
// room for: "settling   [=====>-----]  46 %  32 of 200 orders ended, payment pauses".
func barLine(p demo.Progress, columns int) string {
	width := min(max(columns/6, 10), 30)
	full := width * p.Done / max(p.Steps, 1)
	bar := strings.Repeat("=", full) + strings.Repeat("-", width-full)
	if full > 0 && full < width {
		bar = bar[:full-1] + ">" + bar[full:]
	}
	line := fmt.Sprintf("%-9s  [%s] %3d %%", p.Phase, bar, percent(p))
	for i, part := range tally(p) {
		sep := ", "
		if i == 0 {
			sep = "  "
		}
		if len(line)+len(sep)+len(part) < columns { // the last column stays free: a full line would wrap
			line += sep + part
		}
	}
	return line
}

func percent(p demo.Progress) int { return 100 * p.Done / max(p.Steps, 1) }

// tally is what can be said of a run, the most important first.
func tally(p demo.Progress) []string {
	parts := []string{fmt.Sprintf("%s of %s ended", terminal.Number(p.Confirmed+p.Cancelled), terminal.Count(p.Orders, "order", "orders"))}
	add := func(n int, one, many string) {
		if n > 0 {
			parts = append(parts, terminal.Count(n, one, many))
		}
	}
	switch p.Breaker {
	case demo.BreakerOpen:
		parts = append(parts, "payment pauses")
	case demo.BreakerProbing:
		parts = append(parts, "payment probes")
	case demo.BreakerRamp:
		parts = append(parts, "payment ramps up")
	}
	if p.Placed < p.Orders {
		parts = append(parts, terminal.Number(p.Placed)+" placed")
	}
	add(p.DeadLetters, "dead letter", "dead letters")
	add(p.Crashes, "crash", "crashes")
	add(p.Duplicates, "duplicate", "duplicates")
	return parts
}

// progress shows how far the run has come.
func (s *screen) progress(p demo.Progress) {
	s.mu.Lock()
	changed := p.Phase != s.last.Phase
	s.last = p
	s.mu.Unlock()
	if s.bar == nil && (changed || s.app.now().Sub(s.said) >= plainEvery) {
		s.said = s.app.now()
		s.app.say("%s", plainLine(p))
	}
}

// plainLine is the bar's line without a bar.
func plainLine(p demo.Progress) string {
	return fmt.Sprintf("%s  %s: %d %%, %s", clock(p.Elapsed), p.Phase, percent(p), strings.Join(tally(p), ", "))
}

// clock is the time since the beginning, which stands before each line.
func clock(d time.Duration) string { return fmt.Sprintf("%6.1fs", d.Seconds()) }

// noticeLine is a sentence with its time. What does not fit goes on below, without the time.
func noticeLine(at time.Duration, text string, columns int) string {
	stamp := clock(at) + "  "
	blanks := strings.Repeat(" ", len(stamp))
	return stamp + terminal.Wrap(blanks+terminal.Printable(text), columns, len(stamp))[len(stamp):]
}

// notice shows a sentence above the bar.
func (s *screen) notice(text string) {
	line := noticeLine(s.app.now().Sub(s.begun), text, s.columns) + "\n"
	if s.pool == nil {
		fmt.Fprint(s.app.err, line)
		return
	}
	fmt.Fprint(s.pool, line)
}

// close ends the bar, which stays on the terminal as it is; full if all has happened.
func (s *screen) close(all bool) {
	if s.pool == nil {
		return
	}
	if all {
		s.mu.Lock()
		s.last.Phase, s.last.Done = "done", s.last.Steps
		s.mu.Unlock()
	}
	s.bar.Abort(false)
	s.pool.Wait()
}
