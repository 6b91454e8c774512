package gateway

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
)

// Mode is the kind of fault that the gateway has on purpose.
type Mode string

// The modes.
const (
	ModeOK      Mode = "ok"
	ModeDown    Mode = "down"    // every charge and void gets 503
	ModeSlow    Mode = "slow"    // a new charge or void is made at once and answered after the delay
	ModeFlaky   Mode = "flaky"   // some tries fail: with 500, with 503, or by the loss of the answer
	ModeDecline Mode = "decline" // some orders are declined
)

// Faults are the faults that the gateway has on purpose. The same seed makes the
// same tries of the same keys fail, and the same orders be declined.
type Faults struct {
	// Mode is the kind of fault. Defaults to ModeOK.
	Mode Mode `json:"mode"`
	// Rate is the share of tries that fail (flaky) or of orders that are
	// declined (decline), 0 to 1. Defaults to 0.
	Rate float64 `json:"rate"`
	// DelayMS is the delay of the mode slow, in milliseconds. Defaults to 2,000.
	DelayMS int64 `json:"delay_ms"`
	// Seed chooses which tries fail and which orders are declined. Defaults to 0.
	Seed uint64 `json:"seed"`
}

// SlowFor is how long the answer to a customer takes whose id begins with "slow-".
const SlowFor = 2 * time.Second

const (
	maxDelay = 10 * time.Minute
	// maxInARow is how often in a row tries of one key fail at most. The next one
	// works, so that retries come to an end.
	maxInARow = 3
)

func (f Faults) withDefaults() Faults {
	if f.Mode == "" {
		f.Mode = ModeOK
	}
	if f.DelayMS == 0 {
		f.DelayMS = SlowFor.Milliseconds()
	}
	return f
}

func (f Faults) validate() error {
	switch f.Mode {
	case ModeOK, ModeDown, ModeSlow, ModeFlaky, ModeDecline:
	default:
		return fmt.Errorf("%w: mode %q: want ok, down, slow, flaky or decline", ErrFaults, f.Mode)
	}
	if math.IsNaN(f.Rate) || f.Rate < 0 || f.Rate > 1 {
		return fmt.Errorf("%w: rate %v: want 0 to 1", ErrFaults, f.Rate)
	}
	if f.DelayMS < 0 || f.DelayMS > maxDelay.Milliseconds() {
		return fmt.Errorf("%w: delay_ms %d: want 0 to %d", ErrFaults, f.DelayMS, maxDelay.Milliseconds())
	}
	return nil
}

// fault is what goes wrong with one try.
type fault int

const (
	noFault          fault = iota
	faultError             // 500, nothing is done
	faultUnavailable       // 503, nothing is done
	faultAnswerLost        // it is done, and the connection closed without an answer
)

// injector decides which tries fail. It forgets the tries at a restart.
type injector struct {
	mu     sync.Mutex
	faults Faults
	tries  map[string]tries // by idempotency key
}

type tries struct {
	made   int
	failed int // how many of the last ones, in a row
}

func newInjector() *injector {
	return &injector{faults: Faults{}.withDefaults(), tries: map[string]tries{}}
}

// Faults returns the faults in force.
func (g *Gateway) Faults() Faults { return g.faults.get() }

// SetFaults changes the faults. Its error matches [ErrFaults].
func (g *Gateway) SetFaults(f Faults) error {
	f = f.withDefaults()
	if err := f.validate(); err != nil {
		return err
	}
	g.faults.mu.Lock()
	defer g.faults.mu.Unlock()
	g.faults.faults = f
	return nil
}

func (i *injector) get() Faults {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.faults
}

// try counts a try of a key and decides whether it fails. customer is empty for
// voids.
func (i *injector) try(key, customer string) fault {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.faults.Mode == ModeDown {
		return faultUnavailable
	}
	t := i.tries[key]
	t.made++
	f := i.draw(key, customer, t)
	if f == noFault {
		t.failed = 0
	} else {
		t.failed++
	}
	i.tries[key] = t
	return f
}

func (i *injector) draw(key, customer string, t tries) fault {
	switch {
	case t.failed >= maxInARow:
		return noFault
	case strings.HasPrefix(customer, "flaky-") && t.made == 1:
		return faultError
	case strings.HasPrefix(customer, "flaky-") && t.made == 2:
		return faultUnavailable
	case i.faults.Mode != ModeFlaky:
		return noFault
	}
	share, bits := chance(i.faults.Seed, fmt.Sprintf("%d %s", t.made, key))
	if share >= i.faults.Rate {
		return noFault
	}
	return []fault{faultError, faultUnavailable, faultAnswerLost}[bits%3]
}

// declines says whether a charge is declined. That depends on the customer, the
// order and the seed, and is the same for every try.
func (i *injector) declines(r chargeRequest) (reason string, declined bool) {
	if strings.HasPrefix(r.CustomerID, "decline-") {
		return "insufficient funds", true
	}
	f := i.get()
	if f.Mode != ModeDecline {
		return "", false
	}
	share, _ := chance(f.Seed, r.OrderID)
	return "card refused", share < f.Rate
}

// delay is how long the answer to a new charge or void takes.
func (i *injector) delay(customer string) time.Duration {
	if f := i.get(); f.Mode == ModeSlow {
		return time.Duration(f.DelayMS) * time.Millisecond
	}
	if strings.HasPrefix(customer, "slow-") {
		return SlowFor
	}
	return 0
}

// chance returns a number in [0, 1) and independent bits, both computed from seed
// and text: the same seed and text give the same.
func chance(seed uint64, text string) (share float64, bits uint64) {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(nil, seed), text...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53), binary.BigEndian.Uint64(sum[8:])
}
