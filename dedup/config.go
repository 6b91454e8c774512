package dedup

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// DefaultRetention is how long done events are remembered unless told otherwise.
const DefaultRetention = 24 * time.Hour

// DefaultBucket is the bucket of marks, before the system's prefix.
const DefaultBucket = "dedup"

// minRetention is the finest lifetime that a server keeps.
const minRetention = time.Second

// Config are the choices of [NewKV].
type Config struct {
	// Retention is how long an event is remembered after its last change:
	// how late a copy of it may come and still be recognised. At least one
	// second; a fraction of a second is rounded up. Defaults to 24 h.
	Retention time.Duration
	// Bucket is the KV bucket of the marks, without the system's prefix.
	// Defaults to "dedup".
	Bucket string
	// Logger logs takeovers of claims whose worker died. Defaults to the bus's.
	Logger zerolog.Logger
}

// retentionOf applies the default and refuses what no server can keep.
func retentionOf(d time.Duration) (time.Duration, error) {
	switch {
	case d == 0:
		return DefaultRetention, nil
	case d < minRetention:
		return 0, fmt.Errorf("%w: Retention %v: want at least %v, the shortest lifetime a server keeps", ErrConfig, d, minRetention)
	}
	return d, nil
}

// checkHorizon refuses a retention that ends while an event may still be retried.
func checkHorizon(retention, horizon time.Duration) error {
	if retention < horizon {
		return fmt.Errorf("%w: Retention %v is shorter than the %v an event may be retried: its mark would be forgotten meanwhile, and it could take effect twice", ErrConfig, retention, horizon)
	}
	return nil
}
