package webhook

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// Config says what to deliver and where. URL, Name and Types are required.
type Config struct {
	// URL of the receiver, http or https. A user and password in it are sent
	// as basic authentication. Required.
	URL string
	// Name is the consumer name, shared by all processes that deliver to this
	// receiver. It is what retries, dead letters and the ledger go by: another
	// name is another webhook, which begins at Consumer.Start, by default with the
	// oldest event. Required.
	Name event.Consumer
	// Types are the event types to deliver, at least one, or patterns of them as in
	// "order.*" ([consumer.HandleEvent]). Required.
	Types []event.Type
	// Structured sends the whole event as one JSON document instead of its
	// data as the body and its attributes as headers. With Secrets, it alone
	// puts the attributes under the signature. Defaults to false.
	Structured bool
	// Secrets sign each delivery after Standard Webhooks: "whsec_" and the
	// base64 of 24 to 64 random bytes. Several, all of which sign, let a
	// receiver change from one to the next. Defaults to no signature.
	Secrets []string
	// Headers are sent with each delivery, for instance Authorization. Those
	// that deliveries are made of are refused. Defaults to a User-Agent.
	Headers map[string]string
	// Timeout of one delivery, from connecting to the end of the answer,
	// shorter than the consumer's HandlerTimeout. Defaults to 10 s.
	Timeout time.Duration
	// FollowRedirects is how many redirects of one delivery are followed. Only
	// 307 and 308 are, which leave the request as it is, and only within the
	// URL's scheme, host and port: a receiver cannot send events elsewhere.
	// Defaults to 0, which makes every redirect a permanent failure.
	FollowRedirects int
	// Consumer are settings of the consumer; the webhook fills in name,
	// metrics and logger. Defaults to the consumer's, but for what suits a
	// receiver that belongs to others: 16 deliveries at once, HandlerTimeout
	// 5 s more than Timeout with a lease that allows it, and 15 attempts with
	// a base delay of 1 s and a longest delay of 15 min, which outlive any
	// outage of 15 min. Retry.MaxDelay also bounds a receiver's Retry-After.
	Consumer consumer.Config
	// Logger of the consumer. Defaults to the bus's.
	Logger zerolog.Logger
}

// The defaults that differ from the consumer's.
const (
	defaultTimeout     = 10 * time.Second
	defaultConcurrency = 16
	defaultAttempts    = 15
	defaultBaseDelay   = time.Second
	defaultMaxDelay    = 15 * time.Minute
	// timeoutMargin is what a handler has beyond its delivery.
	timeoutMargin = 5 * time.Second
	// defaultLease is the consumer's; a longer timeout needs a longer one.
	defaultLease = 15 * time.Second
)

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	k := &c.Consumer
	k.Concurrency = cmp.Or(k.Concurrency, defaultConcurrency)
	k.HandlerTimeout = cmp.Or(k.HandlerTimeout, c.Timeout+timeoutMargin)
	k.Lease = cmp.Or(k.Lease, max(defaultLease, k.HandlerTimeout))
	k.Retry.MaxAttempts = cmp.Or(k.Retry.MaxAttempts, defaultAttempts)
	k.Retry.BaseDelay = cmp.Or(k.Retry.BaseDelay, defaultBaseDelay)
	k.Retry.MaxDelay = cmp.Or(k.Retry.MaxDelay, max(defaultMaxDelay, k.Retry.BaseDelay))
	k.Name, k.Logger = c.Name, c.Logger
	return c
}

// Validate tells what [New] would refuse of these settings, for those who want
// to know before they have a bus; those of Consumer are not checked. It joins
// every violated rule. What is secret is not repeated: the URL, headers'
// values, secrets.
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	var errs []error
	if err := c.Name.Validate(); err != nil {
		errs = append(errs, err)
	}
	for _, t := range c.Types {
		if err := t.ValidatePattern(); err != nil {
			errs = append(errs, err)
		}
	}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		bad("URL: want http://host or https://host")
		u = &url.URL{}
	}
	if len(c.Types) == 0 {
		bad("Types: want at least one")
	}
	for i, secret := range c.Secrets {
		if !isSecret(secret) {
			bad("Secrets: number %d: want whsec_ and the base64 of 24 to 64 bytes", i+1)
		}
	}
	for name, value := range c.Headers {
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			bad("Headers: %q is not the name of a header", name)
		case isReserved(name):
			bad("Headers: %s is the webhook's own", name)
		case u.User != nil && strings.EqualFold(name, headerAuthorization):
			bad("Headers: %s is what the URL's user becomes", name)
		case !httpguts.ValidHeaderFieldValue(value):
			bad("Headers: %s: the value has control characters", name)
		}
	}
	if c.Timeout <= 0 || c.Timeout >= c.Consumer.HandlerTimeout {
		bad("Timeout %v: want more than 0 and less than HandlerTimeout %v", c.Timeout, c.Consumer.HandlerTimeout)
	}
	if c.FollowRedirects < 0 {
		bad("FollowRedirects %d: want 0 or more", c.FollowRedirects)
	}
	return errors.Join(errs...)
}

// secretPrefix marks a Standard Webhooks secret.
const secretPrefix = "whsec_"

func isSecret(s string) bool {
	encoded, marked := strings.CutPrefix(s, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	return marked && err == nil && len(key) >= 24 && len(key) <= 64
}

// isReserved reports whether a header is part of what is delivered, or of how
// HTTP delivers it.
func isReserved(name string) bool {
	name = http.CanonicalHeaderKey(name)
	return strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Content-") || strings.HasPrefix(name, "Webhook-") ||
		strings.HasPrefix(name, "Proxy-") || slices.Contains([]string{
		headerKey, "Host", "Connection", "Expect", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	}, name)
}
