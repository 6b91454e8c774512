package resilience

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// model is what a breaker should do, written as plainly as possible.
type model struct {
	cfg     BreakerConfig
	state   State
	age     int // number of state changes, forced ones included
	until   time.Time
	row     int
	ended   []end // of this closed state
	proved  int
	permits []*modelPermit // not reported yet
}

type end struct {
	at     time.Time
	failed bool
}

type modelPermit struct {
	Permit
	age   int
	start time.Time
}

func (m *model) become(s State) {
	m.state, m.age, m.ended, m.proved = s, m.age+1, nil, 0
	if s == Closed {
		m.row = 0
	}
}

// out is how many probes are under way.
func (m *model) out() (n int) {
	for _, p := range m.permits {
		if m.state == HalfOpen && p.age == m.age {
			n++
		}
	}
	return n
}

// allows says whether the next call is let through.
func (m *model) allows() bool {
	if m.state == Open && !time.Now().Before(m.until) {
		m.become(HalfOpen)
	}
	return m.state == Closed || m.state == HalfOpen && m.out()+m.proved < m.cfg.Probes
}

// limit opens a half-open breaker when a probe's time is over.
func (m *model) limit() {
	for _, p := range m.permits {
		if m.state == HalfOpen && p.age == m.age && time.Since(p.start) >= m.cfg.ProbeTimeout {
			m.row++
			m.become(Open)
		}
	}
}

func (m *model) report(p *modelPermit, o Outcome) {
	if p.age != m.age {
		return
	}
	if o == Success && m.cfg.SlowAfter > 0 && time.Since(p.start) > m.cfg.SlowAfter {
		o = Failure
	}
	switch o {
	case Neutral:
		return
	case Success:
		m.row = 0
	case Failure:
		m.row++
	}
	switch m.state {
	case HalfOpen:
		if o == Failure {
			m.become(Open)
		} else if m.proved++; m.proved == m.cfg.Probes {
			m.become(Closed)
		}
	case Closed:
		m.ended = append(m.ended, end{time.Now(), o == Failure})
		if m.tooMany() {
			m.become(Open)
		}
	case Open:
	}
}

func (m *model) tooMany() bool {
	if m.cfg.FailureRate == 0 {
		return m.row >= m.cfg.Failures
	}
	in, failed := 0, 0
	for i, e := range m.ended {
		if m.cfg.Window > 0 && m.step(time.Now())-m.step(e.at) >= windowSteps || m.cfg.Window == 0 && len(m.ended)-i > m.cfg.WindowCalls {
			continue
		}
		in++
		if e.failed {
			failed++
		}
	}
	return in >= m.cfg.MinCalls && float64(failed) >= m.cfg.FailureRate*float64(in)
}

func (m *model) step(at time.Time) int64 { return at.UnixNano() / int64(m.cfg.Window/windowSteps) }

// drawConfig draws a breaker of each kind. Its window of time divides the bubble's
// seconds, so that model and breaker cut time into the same steps.
func drawConfig(t *rapid.T) BreakerConfig {
	cfg := BreakerConfig{
		Name: "model", Probes: rapid.IntRange(1, 4).Draw(t, "probes"), OpenFor: 10 * time.Second, ProbeTimeout: 7 * time.Second,
		SlowAfter: rapid.SampledFrom([]time.Duration{0, 3 * time.Second}).Draw(t, "slow"),
	}
	switch rapid.SampledFrom([]string{"row", "calls", "time"}).Draw(t, "kind") {
	case "row":
		cfg.Failures = rapid.IntRange(1, 4).Draw(t, "failures")
	case "calls":
		cfg.FailureRate, cfg.WindowCalls, cfg.MinCalls = 0.5, rapid.IntRange(2, 8).Draw(t, "window"), 2
	case "time":
		cfg.FailureRate, cfg.Window, cfg.MinCalls = 0.5, 20*time.Second, rapid.IntRange(1, 4).Draw(t, "minimum")
	}
	return cfg
}

// check checks a property in a bubble. In one, rapid must not ask t for its deadline.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { rapid.Check(struct{ testing.TB }{t}, property) })
}

func TestBreakerDoesWhatItsModelSays(t *testing.T) {
	t.Parallel()
	check(t, func(t *rapid.T) {
		// The breaker's time begins with a step of the window.
		pass(time.Until(time.Now().Truncate(20 * time.Second).Add(20 * time.Second)))
		cfg := drawConfig(t)
		b, err := NewBreaker(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{cfg: b.cfg}
		b.Notify(func(tr Transition) {
			if tr.To != Open {
				return
			}
			if tr.Event != EventForced && (tr.OpenFor < cfg.OpenFor || tr.OpenFor > cfg.OpenFor*5/4) {
				t.Fatalf("opened for %v", tr.OpenFor)
			}
			m.until = time.Now().Add(tr.OpenFor)
		})
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				p, err := b.Allow()
				if want := m.allows(); (err == nil) != want {
					t.Fatalf("let through: %v, want %v (%v)", err == nil, want, err)
				}
				if err == nil {
					m.permits = append(m.permits, &modelPermit{Permit: Permit{breaker: b, generation: p.generation, probe: p.probe, start: p.start}, age: m.age, start: time.Now()})
				} else if !errors.Is(err, ErrOpen) {
					t.Fatal(err)
				}
			},
			"done": func(t *rapid.T) {
				if len(m.permits) == 0 {
					t.Skip("nothing is under way")
				}
				i := rapid.IntRange(0, len(m.permits)-1).Draw(t, "permit")
				o := rapid.SampledFrom([]Outcome{Success, Success, Failure, Failure, Neutral}).Draw(t, "outcome")
				p := m.permits[i]
				p.Done(o, nil)
				m.report(p, o)
				m.permits = append(m.permits[:i], m.permits[i+1:]...)
			},
			"time passes": func(t *rapid.T) {
				for range rapid.IntRange(1, 15).Draw(t, "seconds") {
					pass(time.Second)
					synctest.Wait()
					m.limit()
				}
			},
			"open": func(t *rapid.T) {
				b.Open(time.Duration(rapid.IntRange(1, 5).Draw(t, "seconds")) * time.Second)
				m.become(Open)
			},
			"close": func(*rapid.T) { b.Close(); m.become(Closed) },
			"": func(t *rapid.T) {
				s := b.Stats()
				if s.State != m.state || s.Running != len(m.permits) || s.HalfOpenSuccesses != m.proved || s.ConsecutiveFailures != m.row {
					t.Fatalf("got %+v, want state %v, %d running, %d proved, %d failures in a row", s, m.state, len(m.permits), m.proved, m.row)
				}
			},
		})
		for _, p := range m.permits { // so that no timer outlives the run
			p.Done(Neutral, nil)
		}
	})
}
