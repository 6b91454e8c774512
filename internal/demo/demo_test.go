package demo

import (
	"testing"

	"github.com/farandole/farandole/bustest"
)

func TestMain(m *testing.M) { bustest.Main(m) }

func runDemo(t *testing.T, cfg Config) Report {
	t.Helper()
	cfg.Notice = func(text string) { t.Log(text) }
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if !r.Audit.OK {
		for _, v := range r.Audit.Violations {
			t.Error(v)
		}
	}
	return r
}

func TestDemo_without_trouble(t *testing.T) {
	r := runDemo(t, Config{Orders: 30, Seed: 1, Faults: None})
	if r.Confirmed+r.Cancelled != 30 || r.DeadLettered+r.CrashesInjected+r.DuplicatesInjected != 0 {
		t.Errorf("%+v", r)
	}
}

func TestDemo_with_some_trouble(t *testing.T) {
	runDemo(t, Config{Orders: 200, Seed: 1, Faults: Some})
}

func TestDemo_in_a_storm(t *testing.T) {
	runDemo(t, Config{Orders: 200, Seed: 1, Faults: Storm})
}
