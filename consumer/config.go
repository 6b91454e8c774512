package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Config is what a consumer may be told. Only Name is required.
type Config struct {
	// Name is the durable name at the server, shared by all replicas of the
	// service, and the <consumer> token of its subjects. Required.
	Name event.Consumer
	// Source is the CloudEvents source of what the handlers emit. Defaults to "/" + Name.
	Source string
	// Concurrency is how many handlers run at once (the bulkhead). Defaults to 64.
	Concurrency int
	// InFlight is how many events this process holds between delivery and
	// acknowledgement, at least Concurrency, and 2 with From, where 16 of them,
	// or half if there are fewer than 32, are for replays and long retries,
	// which come from the event stream. Events that queue behind
	// InFlight/Concurrency others of their key come on top: a key with a backlog
	// leaves other keys their places. MaxAckPending and 64 MiB bound those.
	// Defaults to 1,024.
	InFlight int
	// MaxAckPending is how many deliveries the server allows to be
	// unacknowledged over all replicas, short retries included; the largest of
	// all replicas counts. Defaults to 4,096.
	MaxAckPending int
	// HandlerTimeout is how long one run of a handler may take. Defaults to 10 s.
	HandlerTimeout time.Duration
	// Lease is how long an event stays this worker's without a heartbeat, and
	// the server's AckWait: after a crash others take over within it. Of replicas
	// with different leases the longest is the AckWait. A heartbeat renews both at
	// a third of it. Defaults to 15 s.
	Lease time.Duration
	// Grace is how long a shutdown waits for running handlers before it
	// cancels them. Defaults to 10 s.
	Grace time.Duration
	// Retry says how often and when a failed event is tried again.
	Retry RetryPolicy
	// MaxCrashes is how many runs may end without an outcome (the process
	// died) before the event is dead-lettered as "crashloop". Defaults to 5.
	MaxCrashes int
	// From attaches the consumer to a stream that Farandole does not own, whose
	// events are of any type ([HandleOthers]). What comes is what matches its
	// subjects. Defaults to the system's event stream and the registered types.
	From *Source
	// Ledger remembers what has been handled. Defaults to a dedup.KV with its defaults.
	Ledger dedup.Ledger
	// Metrics registers the consumer's counters. Defaults to none.
	Metrics prometheus.Registerer
	// Version of the service, told in dead letters. Defaults to "".
	Version string
	// Logger logs outcomes other than success. Defaults to silence.
	Logger zerolog.Logger
}

// Source is a stream that exists already and the subjects to consume of it.
// Nothing of the stream is changed but the durable consumer added.
type Source struct {
	Stream   string
	Subjects []string
}

// RetryPolicy says when a failed event is tried again: the delay before attempt n+1 is uniform in
// [0, min(MaxDelay, BaseDelay * 2^n)], n counting failures from 0 ("full
// jitter"). The last retry of an event complements its earlier ones, so that k
// retries below MaxDelay always last at least (2^(k-1) - 1) * BaseDelay: with
// the defaults an event outlives any outage of 3.5 s.
type RetryPolicy struct {
	// MaxAttempts counts runs of the handler: 5 attempts are 4 retries. Defaults to 5.
	MaxAttempts int
	// BaseDelay. Defaults to 500 ms.
	BaseDelay time.Duration
	// MaxDelay. Defaults to 30 s.
	MaxDelay time.Duration
	// DeferAfter is the longest delay for which a failed event keeps its place
	// (in MaxAckPending) and its key's order. After a longer one the server
	// brings it back by a timer: it holds up nobody meanwhile, also not later
	// events of its key. At least 1 s. Defaults to 10 s.
	DeferAfter time.Duration
}

func (c Config) withDefaults() Config {
	c.Source = orDefault(c.Source, "/"+string(c.Name))
	c.Concurrency = orDefault(c.Concurrency, 64)
	c.InFlight = orDefault(c.InFlight, max(1024, c.Concurrency))
	c.MaxAckPending = orDefault(c.MaxAckPending, 4096)
	c.HandlerTimeout = orDefault(c.HandlerTimeout, 10*time.Second)
	c.Lease = orDefault(c.Lease, 15*time.Second)
	c.Grace = orDefault(c.Grace, 10*time.Second)
	c.MaxCrashes = orDefault(c.MaxCrashes, 5)
	c.Retry.MaxAttempts = orDefault(c.Retry.MaxAttempts, 5)
	c.Retry.BaseDelay = orDefault(c.Retry.BaseDelay, 500*time.Millisecond)
	c.Retry.MaxDelay = orDefault(c.Retry.MaxDelay, max(30*time.Second, c.Retry.BaseDelay))
	c.Retry.DeferAfter = orDefault(c.Retry.DeferAfter, 10*time.Second)
	return c
}

// forRedrives is how many deliveries from the event stream are held with From,
// whatever the other stream does.
func (c Config) forRedrives() int {
	if c.From == nil {
		return 0
	}
	return min(16, max(1, c.InFlight/2))
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// validate joins every violated rule.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if err := c.Name.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Concurrency < 1 {
		bad("Concurrency %d: want at least 1", c.Concurrency)
	}
	if c.InFlight < c.Concurrency {
		bad("InFlight %d is less than Concurrency %d: handlers would wait for events", c.InFlight, c.Concurrency)
	}
	if c.MaxAckPending < 1 {
		bad("MaxAckPending %d: want at least 1", c.MaxAckPending)
	}
	if c.HandlerTimeout <= 0 {
		bad("HandlerTimeout %v: want more than 0", c.HandlerTimeout)
	}
	if c.Lease < time.Second {
		bad("Lease %v: want at least 1s, the finest lifetime the server keeps", c.Lease)
	}
	if c.Lease < c.HandlerTimeout {
		bad("Lease %v is shorter than HandlerTimeout %v: one missed heartbeat would start the handler twice", c.Lease, c.HandlerTimeout)
	}
	if c.Grace < 0 {
		bad("Grace %v: want 0 or more", c.Grace)
	}
	if c.MaxCrashes < 1 {
		bad("MaxCrashes %d: want at least 1", c.MaxCrashes)
	}
	if c.From != nil && (c.From.Stream == "" || len(c.From.Subjects) == 0) {
		bad("From needs a stream and at least one subject")
	}
	if c.From != nil && c.InFlight < 2 {
		bad("InFlight %d: want at least 2 with From, one is for what comes back from the dead letters", c.InFlight)
	}
	return errors.Join(append(errs, c.Retry.validate()...)...)
}

func (p RetryPolicy) validate() (errs []error) {
	if p.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("%w: Retry.MaxAttempts %d: want at least 1", ErrConfig, p.MaxAttempts))
	}
	if p.BaseDelay <= 0 {
		errs = append(errs, fmt.Errorf("%w: Retry.BaseDelay %v: want more than 0", ErrConfig, p.BaseDelay))
	}
	if p.MaxDelay < p.BaseDelay {
		errs = append(errs, fmt.Errorf("%w: Retry.MaxDelay %v is shorter than BaseDelay %v", ErrConfig, p.MaxDelay, p.BaseDelay))
	}
	if p.DeferAfter < time.Second {
		errs = append(errs, fmt.Errorf("%w: Retry.DeferAfter %v: want at least 1s, the grain of the server's timers", ErrConfig, p.DeferAfter))
	}
	return errs
}
