package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/event"
)

// Watcher is a driver ([sql.DB.Driver]) that tells of commits, as that of package
// sqlite does. A relay of such a database uses it.
type Watcher interface {
	// Watch calls wake whenever any process may have committed rows to db, until
	// ctx ends. After an error the relay goes on polling and calls Watch again.
	Watch(ctx context.Context, db *sql.DB, wake func()) error
}

// RelayConfig are the choices of [NewRelay].
type RelayConfig struct {
	// Batch is how many rows a claim takes. At most four times as many are in
	// flight. Defaults to 500.
	Batch int
	// Lease is how long claimed rows stay this relay's, 1 s to 1 h: after a crash
	// another relay takes them over when it ends. The relay sends in its first half
	// only; the rest is for acknowledgements and marks. Defaults to 30 s.
	Lease time.Duration
	// Poll is how often an idle relay looks for rows of which nobody has told it:
	// those of other processes, without a [Watcher], and those that are due for another
	// try. Defaults to 200 ms.
	Poll time.Duration
	// MaxAttempts is how often the server may refuse a row before it is parked.
	// Failures for which the row cannot be blamed do not count. Defaults to 5.
	MaxAttempts int
	// BaseDelay and MaxDelay bound the wait for another try, at most 1 h. After the
	// n-th refusal the wait is uniform in [0, min(MaxDelay, BaseDelay * 2^(n-1))]
	// ("full jitter"). During an outage it is uniform in [0, the row's age], where an
	// age below BaseDelay counts as BaseDelay, and one above MaxDelay as MaxDelay.
	// Default to 500 ms and 30 s.
	BaseDelay, MaxDelay time.Duration
	// Types are the event types that rows may have, without a reverse-DNS prefix, as in
	// order.placed.v1. Rows of other types are parked, but for those that a
	// consumer's step has written. Defaults to all types.
	Types []event.Type
	// Retention is how long published rows are kept. Defaults to 1 h.
	Retention time.Duration
	// Feed tells of rows from the database's log (package postgres/cdc). They are
	// published as it tells of them, and claimed only if that fails. Defaults to none:
	// all rows are claimed.
	Feed Feed
	// Metrics registers the relay's metrics. Defaults to none.
	Metrics prometheus.Registerer
	// Logger logs trouble, and rows that are parked. Defaults to the bus's.
	Logger zerolog.Logger
}

func (c RelayConfig) withDefaults() RelayConfig {
	c.Batch = cmp.Or(c.Batch, 500)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Poll = cmp.Or(c.Poll, 200*time.Millisecond)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.BaseDelay = cmp.Or(c.BaseDelay, 500*time.Millisecond)
	c.MaxDelay = cmp.Or(c.MaxDelay, max(30*time.Second, c.BaseDelay))
	c.Retention = cmp.Or(c.Retention, time.Hour)
	return c
}

// validate joins every violated rule.
func (c RelayConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if c.Batch < 1 || c.Batch > maxBatch {
		bad("Batch %d: want 1 to %d", c.Batch, maxBatch)
	}
	if c.Lease < time.Second || c.Lease > maxLease {
		bad("Lease %v: want 1s to %v", c.Lease, maxLease)
	}
	if c.Poll < minPoll {
		bad("Poll %v: want at least %v", c.Poll, minPoll)
	}
	if c.MaxAttempts < 1 {
		bad("MaxAttempts %d: want at least 1", c.MaxAttempts)
	}
	if c.BaseDelay < 0 {
		bad("BaseDelay %v: want more than 0", c.BaseDelay)
	}
	if c.MaxDelay < c.BaseDelay {
		bad("MaxDelay %v is less than BaseDelay %v", c.MaxDelay, c.BaseDelay)
	}
	if c.MaxDelay > maxLease {
		bad("MaxDelay %v: want at most %v", c.MaxDelay, maxLease)
	}
	for _, t := range c.Types {
		if err := t.Validate(); err != nil {
			bad("Types: %w", err)
		}
	}
	if c.Retention < 0 {
		bad("Retention %v: want more than 0", c.Retention)
	}
	return errors.Join(errs...)
}

const (
	// maxBatch keeps the lists of ids that go to the database short.
	maxBatch = 10_000
	// maxLease is the longest that a relay leases a row, or lets it wait. A later due_at
	// in the table is not a relay's, and is ignored: see free in sql_relay.go and the
	// function outbox_claim.
	maxLease = time.Hour
	// minPoll is how soon a relay that was woken and found nothing looks again: Add
	// wakes it before the caller's transaction has committed.
	minPoll = 5 * time.Millisecond
)
