package demo

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/ledger"
)

// Faults says how many faults are injected.
type Faults string

// The values of Faults.
const (
	None   Faults = "none"
	Some   Faults = "some"   // a few of each kind
	Outage Faults = "outage" // the gateway is down for several seconds, and nothing else; each service has two replicas
	Storm  Faults = "storm"  // many, an outage among them; the same replicas, and every process is killed three times
)

// Config holds the settings of a run.
type Config struct {
	// Orders to place. Defaults to 200.
	Orders int
	// Rate is how many orders are placed a second. Defaults to as many as possible; with
	// [Outage] to all of them within 5 s, so that the gateway gets some before, while and
	// after it is down.
	Rate float64
	// Concurrency is how many orders are placed at once. Defaults to 16.
	Concurrency int
	// Seed of the random choice of customers, items and faults. With the same seed
	// the same orders are confirmed and cancelled. Defaults to 0, a seed like any other.
	Seed uint64
	// Faults to inject. Defaults to Some.
	Faults Faults
	// Ledger of the payment service. The other two have no choice: inventory keeps
	// its state in the event stream, order in its database. Defaults to KV.
	Ledger ledger.Kind
	// DatabaseURL is the URL of a Postgres database. The order service gets its own
	// schema in it, demo_ and random characters, which is dropped at the end.
	// Defaults to a SQLite file in a temporary directory.
	DatabaseURL string
	// Patience is how long a run may go on without a new order or a new event
	// before it is given up. Defaults to 1 min.
	Patience time.Duration
	// Progress is called about ten times a second, from one goroutine.
	// Defaults to none.
	Progress func(Progress)
	// Notice is called with a sentence for people when a fault is injected or
	// removed, from any goroutine, one call at a time. Defaults to none.
	Notice func(text string)
	// KeepOpen is called with the report while the system is still there, all faults
	// mended; Run stops it when KeepOpen has returned. Defaults to none.
	KeepOpen func(Report, Address)
	// Logger receives the logs of the services. Defaults to warnings on stderr.
	Logger zerolog.Logger
}

// Address is where a system listens, on the loopback interface.
type Address struct {
	NATS string
	Shop string // the order service's HTTP
}

// Progress tells how far a run has come.
type Progress struct {
	Phase string
	// Steps is how much has to happen in all, and Done how much of it has happened.
	Steps, Done int
	Elapsed     time.Duration
	// Orders is how many are to be placed, Placed how many were answered with 202.
	Orders, Placed       int
	Confirmed, Cancelled int
	DeadLetters          int // now in the queue
	// Breaker is what the breaker of the gateway does; "" while nothing is to be told.
	Breaker             BreakerState
	Duplicates, Crashes int // injected so far
}
