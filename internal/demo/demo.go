package demo

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/ledger"
)

// Faults is an amount of trouble.
type Faults string

// The amounts of trouble.
const (
	None  Faults = "none"
	Some  Faults = "some"  // a little of each kind
	Storm Faults = "storm" // lots, and every service crashes several times
)

// Config says how big and how rough the run is.
type Config struct {
	// Orders to place. Defaults to 200.
	Orders int
	// Rate is how many orders are placed a second. Defaults to as many as possible.
	Rate float64
	// Concurrency is how many orders are placed at once. Defaults to 16.
	Concurrency int
	// Seed draws customers, items and trouble: the same seed has the same
	// business outcome. Every value is a seed.
	Seed uint64
	// Faults to inject. Defaults to Some.
	Faults Faults
	// Ledger of payment; inventory keeps its state in the stream and so needs
	// the one there, and order the one in its database. Defaults to KV.
	Ledger ledger.Kind
	// DatabaseURL names a Postgres database, in which the order service gets a
	// schema of its own (demo_…) that is dropped in the end. Defaults to none: a
	// SQLite file in a temporary directory.
	DatabaseURL string
	// Patience is how long nothing may happen, no order be taken and no event
	// stored, before the run is given up. Defaults to 1 min.
	Patience time.Duration
	// Progress is called about ten times a second, from one goroutine.
	// Defaults to none.
	Progress func(Progress)
	// Notice is called when something remarkable happens, from any goroutine,
	// one call at a time. Defaults to none.
	Notice func(text string)
	// Logger receives the logs of the services. Defaults to silence.
	Logger zerolog.Logger
}

// Progress is where a run stands.
type Progress struct {
	Phase   string
	Elapsed time.Duration
	// Orders are those wanted, Placed those answered with 202.
	Orders, Placed       int
	Confirmed, Cancelled int
	DeadLetters          int // now in the queue
	Duplicates, Crashes  int // injected so far
}
