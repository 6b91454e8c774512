package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Config are the choices of [New]. Only Name is required.
type Config struct {
	// Name is the durable name at the server, shared by all replicas of the
	// service, and the <consumer> token of its subjects. Required.
	Name event.Consumer
	// Source is the CloudEvents source of what the handlers emit. Defaults to "/" + Name.
	Source string
	// Concurrency is how many handlers run at once (the bulkhead). Defaults to 64.
	Concurrency int
	// InFlight is how many events this process holds between delivery and
	// acknowledgement. At least Concurrency; with From at least 2, because 16 of
	// them (half, if there are fewer than 32) are kept for replays and long
	// retries, which come from the event stream. Events that queue behind
	// InFlight/Concurrency others of their key come on top, so that a key with a
	// backlog leaves places to other keys. MaxAckPending and 64 MiB bound those.
	// Defaults to 1,024, or Concurrency if that is more; to 4,096 with the ledger
	// dedup.Partitions, where events hold their place until their page is stored.
	InFlight int
	// MaxAckPending is how many deliveries the server allows to be unacknowledged
	// over all replicas, those that wait for a short retry included. If replicas
	// differ, the largest counts. Defaults to 4,096.
	MaxAckPending int
	// HandlerTimeout is how long one run of a handler may take. It may end up to 2 %
	// later, because handlers that start together share a timer. Defaults to 10 s.
	HandlerTimeout time.Duration
	// Lease is how long an event stays this worker's without a heartbeat, and the
	// server's AckWait: after a crash others take over within it. A heartbeat renews
	// both at a third of it. If replicas differ, the longest lease is the AckWait.
	// At least 1 s, and HandlerTimeout. Defaults to 15 s.
	Lease time.Duration
	// Grace is how long a shutdown waits for running handlers before it
	// cancels them. Defaults to 10 s.
	Grace time.Duration
	// Retry says how often and when a failed event is tried again. Defaults to those of RetryPolicy.
	Retry RetryPolicy
	// MaxCrashes is how many runs may end with the process, before the event is
	// dead-lettered as "crashloop". Defaults to 5.
	MaxCrashes int
	// From attaches the consumer to a stream that Farandole does not own. It gets
	// what matches the subjects, of any type ([HandleOthers]). Defaults to the
	// system's event stream and the registered types.
	From *Stream
	// Start is where a consumer begins whose name is new on the stream. It counts at the
	// first start alone, and the ledger remembers it: what was left out stays left out.
	// Defaults to everything that the stream keeps.
	Start Start
	// Ledger remembers what has been handled. Defaults to a dedup.KV with its defaults.
	Ledger dedup.Ledger
	// Metrics registers the consumer's counters. Defaults to none.
	Metrics prometheus.Registerer
	// Version of the service, as in "v1.4.2", for dead letters. Defaults to "".
	Version string
	// Logger logs whatever does not end in success, and one line when the consumer is
	// ready. Defaults to the bus's, which writes warnings to stderr.
	Logger zerolog.Logger
}

// Stream is a stream that exists already, and what to consume of it. A consumer
// adds its durable to the stream and changes nothing else of it.
type Stream struct {
	// Name of the stream, as in "GITHUB". Required.
	Name string
	// Subjects are the filters of what is consumed, as in "github.push.>". At
	// least one.
	Subjects []string
}

// Start says with which event a new consumer begins. The zero Start is everything that
// the stream keeps. Types that a later version adds begin there, too.
type Start struct {
	// Now leaves out what was stored before the consumer's first start, by the server's
	// clock. What is stored while it starts is not left out.
	Now bool
	// Since leaves out what was stored before a time, by the server's clock.
	Since time.Time
}

// RetryPolicy says when a failed event is tried again. The delay after its n-th
// failure is uniform in [0, min(MaxDelay, BaseDelay * 2^(n-1))] ("full jitter"). The
// last delay of an event complements its earlier ones, so that k retries below
// MaxDelay always last at least (2^(k-1) - 1) * BaseDelay: with the defaults an event
// outlives any outage of 3.5 s.
type RetryPolicy struct {
	// MaxAttempts counts runs of the handler: 5 attempts are 4 retries. Defaults to 5.
	MaxAttempts int
	// BaseDelay is the longest delay after the first failure. Defaults to 500 ms.
	BaseDelay time.Duration
	// MaxDelay is the longest delay after any failure. Defaults to 30 s, or
	// BaseDelay if that is more.
	MaxDelay time.Duration
	// DeferAfter is the longest delay for which a failed event keeps its place in
	// MaxAckPending and the order of its key. After a longer delay the server brings
	// it back by a timer. Meanwhile it holds up nobody, later events of its key
	// included. An event that asks for that at once returns [Yield]. At least 1 s.
	// Defaults to 10 s.
	DeferAfter time.Duration
}

func (c Config) withDefaults() Config {
	c.Source = cmp.Or(c.Source, "/"+string(c.Name))
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	places := 1024
	if c.Ledger != nil && c.Ledger.Partitions() != nil {
		places = 4096
	}
	c.InFlight = cmp.Or(c.InFlight, max(places, c.Concurrency))
	c.MaxAckPending = cmp.Or(c.MaxAckPending, 4096)
	c.HandlerTimeout = cmp.Or(c.HandlerTimeout, 10*time.Second)
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	c.MaxCrashes = cmp.Or(c.MaxCrashes, 5)
	c.Retry = c.Retry.withDefaults()
	return c
}

func (p RetryPolicy) withDefaults() RetryPolicy {
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 5)
	p.BaseDelay = cmp.Or(p.BaseDelay, 500*time.Millisecond)
	p.MaxDelay = cmp.Or(p.MaxDelay, max(30*time.Second, p.BaseDelay))
	p.DeferAfter = cmp.Or(p.DeferAfter, 10*time.Second)
	return p
}

// forRedrives is how many of InFlight are for the event stream, with From.
func (c Config) forRedrives() int {
	if c.From == nil {
		return 0
	}
	return min(16, max(1, c.InFlight/2))
}

// validate joins every violated rule.
func (c Config) validate() error {
	errs := []error{c.Name.Validate()}
	rule := func(kept bool, format string, args ...any) {
		if !kept {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}
	rule(c.Concurrency >= 1, "Concurrency %d: want at least 1", c.Concurrency)
	rule(c.InFlight >= c.Concurrency, "InFlight %d is less than Concurrency %d: handlers would wait for events", c.InFlight, c.Concurrency)
	rule(c.MaxAckPending >= 1, "MaxAckPending %d: want at least 1", c.MaxAckPending)
	rule(c.HandlerTimeout > 0, "HandlerTimeout %v: want more than 0", c.HandlerTimeout)
	rule(c.Lease >= time.Second, "Lease %v: want at least 1s, the finest lifetime the server keeps", c.Lease)
	rule(c.Lease >= c.HandlerTimeout, "Lease %v is shorter than HandlerTimeout %v: one missed heartbeat would start the handler twice", c.Lease, c.HandlerTimeout)
	rule(c.Grace >= 0, "Grace %v: want 0 or more", c.Grace)
	rule(c.MaxCrashes >= 1, "MaxCrashes %d: want at least 1", c.MaxCrashes)
	rule(!c.Start.Now || c.Start.Since.IsZero(), "Start: Now and Since: want one of them")
	if c.From != nil {
		rule(c.From.Name != "" && len(c.From.Subjects) > 0, "From needs a stream and at least one subject")
		rule(c.Ledger == nil || c.Ledger.Partitions() == nil, "From with the ledger dedup.Partitions: stream %s stores nothing by partition, use another ledger", c.From.Name)
		rule(c.InFlight >= 2, "InFlight %d: want at least 2 with From, one is for what comes back from the dead letters", c.InFlight)
	}
	p := c.Retry
	rule(p.MaxAttempts >= 1, "Retry.MaxAttempts %d: want at least 1", p.MaxAttempts)
	rule(p.BaseDelay > 0, "Retry.BaseDelay %v: want more than 0", p.BaseDelay)
	rule(p.MaxDelay >= p.BaseDelay, "Retry.MaxDelay %v is shorter than BaseDelay %v", p.MaxDelay, p.BaseDelay)
	rule(p.DeferAfter >= time.Second, "Retry.DeferAfter %v: want at least 1s, the grain of the server's timers", p.DeferAfter)
	return errors.Join(errs...)
}
