package consumer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/event"
)

func TestConfigDefaultsAreValid(t *testing.T) {
	t.Parallel()
	c := Config{Name: "payment"}.withDefaults()
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if c.Source != "/payment" {
		t.Errorf("Source = %q, want /payment", c.Source)
	}
	if c.Retry.MaxAttempts != 5 {
		t.Errorf("MaxAttempts = %d, want 5", c.Retry.MaxAttempts)
	}
}

func TestConfigDefaultsFollowWhatIsSet(t *testing.T) {
	t.Parallel()
	c := Config{Name: "payment", Concurrency: 2000, Retry: RetryPolicy{BaseDelay: time.Minute}}.withDefaults()
	if err := c.validate(); err != nil {
		t.Errorf("a large Concurrency or BaseDelay alone is refused: %v", err)
	}
}

func TestConfigRules(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"concurrency":           {func(c *Config) { c.Concurrency = -1 }, "Concurrency -1: want at least 1"},
		"in flight":             {func(c *Config) { c.Concurrency, c.InFlight = 8, 7 }, "InFlight 7 is less than Concurrency 8"},
		"max ack pending":       {func(c *Config) { c.MaxAckPending = -1 }, "MaxAckPending -1"},
		"handler timeout":       {func(c *Config) { c.HandlerTimeout = -time.Second }, "HandlerTimeout -1s"},
		"lease too fine":        {func(c *Config) { c.Lease, c.HandlerTimeout = 999*time.Millisecond, time.Millisecond }, "Lease 999ms: want at least 1s"},
		"grace":                 {func(c *Config) { c.Grace = -1 }, "Grace -1ns"},
		"crashes":               {func(c *Config) { c.MaxCrashes = -1 }, "MaxCrashes -1"},
		"attempts":              {func(c *Config) { c.Retry.MaxAttempts = -1 }, "Retry.MaxAttempts -1"},
		"base delay":            {func(c *Config) { c.Retry.BaseDelay = -1 }, "Retry.BaseDelay -1ns"},
		"cap below base":        {func(c *Config) { c.Retry.BaseDelay, c.Retry.MaxDelay = 2, 1 }, "MaxDelay 1ns is shorter than BaseDelay 2ns"},
		"defer too fine":        {func(c *Config) { c.Retry.DeferAfter = 999 * time.Millisecond }, "Retry.DeferAfter 999ms: want at least 1s"},
		"lease below timeout":   {func(c *Config) { c.Lease, c.HandlerTimeout = 2*time.Second, 3*time.Second }, "Lease 2s is shorter than HandlerTimeout 3s"},
		"from without a stream": {func(c *Config) { c.From = &Stream{Subjects: []string{"a"}} }, "From needs a stream"},
		"from without room": {func(c *Config) {
			c.From, c.Concurrency, c.InFlight = &Stream{Name: "S", Subjects: []string{"a"}}, 1, 1
		}, "InFlight 1: want at least 2 with From"},
		"from without subjects": {func(c *Config) { c.From = &Stream{Name: "S"} }, "at least one subject"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Config{Name: "payment"}.withDefaults()
			tt.spoil(&c)
			err := c.validate()
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("validate = %v, want an ErrConfig that says %q", err, tt.want)
			}
		})
	}
}

func TestConfigNameIsChecked(t *testing.T) {
	t.Parallel()
	for _, name := range []event.Consumer{"", "Payment", "a.b", "a*", "a b", event.Consumer(strings.Repeat("a", 33))} {
		if err := (Config{Name: name}).withDefaults().validate(); !errors.Is(err, event.ErrInvalidConsumer) {
			t.Errorf("name %q: %v, want ErrInvalidConsumer", name, err)
		}
	}
}

func TestEvery_violated_rule_is_reported(t *testing.T) {
	t.Parallel()
	_, err := New(nil, NewRegistry(), Config{
		Name: "payment", Concurrency: -1, HandlerTimeout: time.Minute,
		Retry: RetryPolicy{BaseDelay: time.Minute, MaxDelay: time.Second},
	})
	for _, want := range []string{"Concurrency", "shorter than HandlerTimeout", "shorter than BaseDelay", "no handlers"} {
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an ErrConfig that says %q", err, want)
		}
	}
}
