package webhook

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func valid() Config {
	return Config{URL: "https://example.com/hook", Name: "partner", Types: []event.Type{"order.placed.v1"}}
}

func TestConfigRules(t *testing.T) {
	t.Parallel()
	if err := valid().Validate(); err != nil {
		t.Fatalf("a valid configuration: %v", err)
	}
	for _, tt := range []struct {
		rule   string
		change func(*Config)
		want   error
		says   string
	}{
		{"no URL", func(c *Config) { c.URL = "" }, ErrConfig, "URL"},
		{"scheme", func(c *Config) { c.URL = "file:///etc/passwd" }, ErrConfig, "URL"},
		{"other scheme", func(c *Config) { c.URL = "gopher://example.com" }, ErrConfig, "URL"},
		{"no host", func(c *Config) { c.URL = "http:///hook" }, ErrConfig, "URL"},
		{"only a port", func(c *Config) { c.URL = "http://:80/hook" }, ErrConfig, "URL"},
		{"opaque", func(c *Config) { c.URL = "http:example.com" }, ErrConfig, "URL"},
		{"line break", func(c *Config) { c.URL = "http://example.com/\r\nX: y" }, ErrConfig, "URL"},
		{"no name", func(c *Config) { c.Name = "" }, event.ErrInvalidConsumer, ""},
		{"no types", func(c *Config) { c.Types = nil }, ErrConfig, "Types"},
		{"illegal type", func(c *Config) { c.Types = []event.Type{"Order Placed"} }, event.ErrInvalidType, ""},
		{"secret without its prefix", func(c *Config) { c.Secrets = []string{testSecret[6:]} }, ErrConfig, "number 1"},
		{"short secret", func(c *Config) { c.Secrets = []string{testSecret, "whsec_c2hvcnQ="} }, ErrConfig, "number 2"},
		{"secret that is not base64", func(c *Config) { c.Secrets = []string{"whsec_" + strings.Repeat("*", 40)} }, ErrConfig, "number 1"},
		{"header's name", func(c *Config) { c.Headers = map[string]string{"X Y": "z"} }, ErrConfig, `"X Y"`},
		{"header's value", func(c *Config) { c.Headers = map[string]string{"X-Y": "z\r\nEvil: 1"} }, ErrConfig, "X-Y"},
		{"attribute as header", func(c *Config) { c.Headers = map[string]string{"ce-id": "1"} }, ErrConfig, "ce-id"},
		{"own header", func(c *Config) { c.Headers = map[string]string{"idempotency-key": "1"} }, ErrConfig, "idempotency-key"},
		{"framing header", func(c *Config) { c.Headers = map[string]string{"Content-Length": "1"} }, ErrConfig, "Content-Length"},
		{"user and Authorization", func(c *Config) {
			c.URL, c.Headers = "https://anna:pw@example.com", map[string]string{"authorization": "Bearer x"}
		}, ErrConfig, "authorization"},
		{"negative timeout", func(c *Config) { c.Timeout = -time.Second }, ErrConfig, "Timeout"},
		{"timeout of the handler", func(c *Config) { c.Timeout, c.Consumer.HandlerTimeout = time.Second, time.Second }, ErrConfig, "Timeout"},
		{"endless timeout", func(c *Config) { c.Timeout = 1<<63 - 1 }, ErrConfig, "Timeout"},
		{"negative redirects", func(c *Config) { c.FollowRedirects = -1 }, ErrConfig, "FollowRedirects"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			t.Parallel()
			cfg := valid()
			tt.change(&cfg)
			err := cfg.Validate()
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Validate = %v, want %v saying %q", err, tt.want, tt.says)
			}
		})
	}
}

func TestConfigJoinsProblemsAndTellsNoSecret(t *testing.T) {
	t.Parallel()
	err := Config{
		URL: "ftp://anna:hunter2@example.com/path?token=hunter2", Name: "partner", Secrets: []string{"whsec_hunter2"},
		Headers: map[string]string{"Authorization": "hunter2\n"},
	}.Validate()
	for _, part := range []string{"URL", "Types", "Secrets", "Headers"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not tell %s", err, part)
		}
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "anna") {
		t.Errorf("%v tells a secret", err)
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	got := Config{Name: "partner", Timeout: time.Minute}.withDefaults()
	want := consumer.Config{
		Name: "partner", Concurrency: 16, HandlerTimeout: 65 * time.Second, Lease: 65 * time.Second,
		Retry: consumer.RetryPolicy{MaxAttempts: 15, BaseDelay: time.Second, MaxDelay: 15 * time.Minute},
	}
	if k := got.Consumer; k.Name != want.Name || k.Concurrency != want.Concurrency || k.HandlerTimeout != want.HandlerTimeout ||
		k.Lease != want.Lease || k.Retry != want.Retry {
		t.Errorf("%+v, want %+v", k, want)
	}
	if got := (Config{}).withDefaults(); got.Timeout != 10*time.Second || got.Consumer.Lease != 15*time.Second {
		t.Errorf("timeout %v, lease %v", got.Timeout, got.Consumer.Lease)
	}
}
