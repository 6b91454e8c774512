package resilience

import (
	"errors"
	"testing"
	"time"
)

func TestBreakerConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]BreakerConfig{
		"no name":                       {},
		"negative failures":             {Name: "x", Failures: -1},
		"failures and a rate":           {Name: "x", Failures: 1, FailureRate: 0.5, WindowCalls: 10},
		"rate over 1":                   {Name: "x", FailureRate: 1.1, WindowCalls: 10},
		"negative rate":                 {Name: "x", FailureRate: -0.1, WindowCalls: 10},
		"rate without a window":         {Name: "x", FailureRate: 0.5},
		"two windows":                   {Name: "x", FailureRate: 0.5, WindowCalls: 10, Window: time.Second},
		"huge window":                   {Name: "x", FailureRate: 0.5, WindowCalls: 10_001},
		"window without a rate":         {Name: "x", Window: time.Second},
		"negative window":               {Name: "x", FailureRate: 0.5, Window: -time.Second},
		"window of less than its steps": {Name: "x", FailureRate: 0.5, Window: 9},
		"minimum beyond the window":     {Name: "x", FailureRate: 0.5, WindowCalls: 10, MinCalls: 11},
		"negative minimum":              {Name: "x", FailureRate: 0.5, WindowCalls: 10, MinCalls: -1},
		"negative times":                {Name: "x", OpenFor: -1},
		"negative slow":                 {Name: "x", SlowAfter: -1},
		"negative probe timeout":        {Name: "x", ProbeTimeout: -1},
		"negative probes":               {Name: "x", Probes: -1},
	} {
		if _, err := NewBreaker(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cfg := range map[string]BreakerConfig{
		"defaults":     {Name: "x"},
		"small window": {Name: "x", FailureRate: 1, WindowCalls: 3},
		"time window":  {Name: "x", FailureRate: 0.5, Window: time.Second},
	} {
		if _, err := NewBreaker(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
