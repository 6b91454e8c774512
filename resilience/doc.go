// Package resilience keeps the trouble of a dependency small.
//
// # Role
//
// A [Breaker] stops calls to a dependency that fails, for a time, and lets a few
// probes find out whether it works again.
//
// # Guarantees
//
//   - While a breaker is half-open, it has granted at most Probes permits that were
//     not given back as neutral, however many callers there are.
//   - A permit counts once. What is reported after the breaker has changed its state
//     does not count. A probe that reports nothing within ProbeTimeout has failed.
//   - Times are durations since the breaker was made: setting the computer's clock
//     changes nothing.
//
// # Not guaranteed
//
//   - A breaker does not end calls that it has let through; give them a deadline.
//   - Its state is that of one process, and a new process begins closed.
package resilience
