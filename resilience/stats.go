package resilience

// policy is one that can reject a call.
type policy int

const (
	policyRate policy = iota
	policyBulkhead
	policyBreaker
	policies
)

var policyNames = [...]string{policyRate: "rate_limit", policyBulkhead: "bulkhead", policyBreaker: "breaker"}

// String returns the policy's metric label.
func (p policy) String() string { return policyNames[p] }

// reject counts a call that a policy did not let through, and returns why.
func (g *Guard) reject(p policy, err error) error {
	g.rejected[p].Add(1)
	return err
}

// Stats is what a guard has counted since [New]. Attempts are counted, so a call
// with one retry counts twice.
type Stats struct {
	// Running are attempts that are under way now.
	Running int
	// Successes, Failures and Neutral are how attempts ended.
	Successes, Failures, Neutral uint64
	Retry                        RetryStats
	Rate                         RateStats
	Bulkhead                     BulkheadStats
	// Breaker is the zero value without one. A breaker that several guards share
	// counts the calls of all.
	Breaker BreakerStats
	// BreakerRejected are the calls of this guard that the breaker rejected.
	BreakerRejected uint64
	// TimedOut are attempts that outran their timeout.
	TimedOut uint64
	// Fallbacks are calls that a fallback answered.
	Fallbacks uint64
}

// RetryStats counts retries.
type RetryStats struct {
	Retries uint64 // attempts beyond the first of a call
	Waiting int    // calls that wait for their next attempt now
}

// RateStats counts what the rate limit did.
type RateStats struct {
	Waiting  int    // calls that wait for a token now
	Keys     int    // keys that are remembered
	Rejected uint64 // calls that were refused, or given up while they waited
}

// BulkheadStats counts what the bulkhead did.
type BulkheadStats struct {
	Running  int    // places taken
	Queued   int    // calls that wait for a place now
	Rejected uint64 // calls without a place, or given up while they waited
}

// Stats returns the counts so far.
func (g *Guard) Stats() Stats {
	s := Stats{
		Running:   int(g.running.Load()),
		Successes: g.ended[Success].Load(), Failures: g.ended[Failure].Load(), Neutral: g.ended[Neutral].Load(),
		Retry:           RetryStats{Retries: g.retries.Load(), Waiting: int(g.backingOff.Load())},
		Rate:            RateStats{Rejected: g.rejected[policyRate].Load()},
		Bulkhead:        BulkheadStats{Rejected: g.rejected[policyBulkhead].Load()},
		BreakerRejected: g.rejected[policyBreaker].Load(), TimedOut: g.timeouts.Load(), Fallbacks: g.fallbacks.Load(),
	}
	if g.limiter != nil {
		s.Rate.Waiting, s.Rate.Keys = int(g.limiter.waiting.Load()), g.limiter.remembered()
	}
	if g.bulkhead != nil {
		// A call for which there is no room is queued for a moment: not one too many.
		s.Bulkhead.Running, s.Bulkhead.Queued = len(g.bulkhead.places), int(min(g.bulkhead.queued.Load(), g.bulkhead.queue))
	}
	if g.cfg.Breaker != nil {
		s.Breaker = g.cfg.Breaker.Stats()
	}
	return s
}
