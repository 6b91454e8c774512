// Package fleet ties a circuit breaker to a consumer and to the other processes of it,
// so that a dependency that is down costs no attempts, no dead letters and no storm.
//
// # Role
//
// A [Breaker] shares the state of a [resilience.Breaker] through a KV bucket. When the
// breaker of one process opens, all processes of the consumer begin no handler any
// more, and the server delivers nothing until the dependency may be probed. Then one
// process is elected, which lets a few events through. When these succeed, all go on,
// at first with few handlers at once. An operator may open and close it, too: [Force];
// [List] tells where all breakers stand.
//
// # Lifecycle
//
// [New] does no I/O. Call [Breaker.Run] beside the consumer's Run, and [Breaker.Excuse]
// for the failures of the dependency in handlers. A process that ends, in whatever way,
// leaves nothing to be cleaned up.
//
// # Guarantees
//
//   - While the breaker is not closed, no event spends an attempt because of the
//     dependency, and what the processes hold stays theirs.
//   - In each open period the dependency gets the probes of one process, and no others.
//     A prober that died, or that found no event to probe with, is followed by another.
//   - Times are the server's. A process whose clock is wrong does no harm.
//
// # Not guaranteed
//
//   - Calls that are under way when the breaker opens go on. Failures before it opens
//     spend attempts.
//   - An event for which the dependency fails while it works for others is no attempt
//     while the breaker is not closed. As long as there is no other event to probe with it
//     keeps the breaker open.
//   - If the bucket is missing or denied, or the server may not be asked to pause, each
//     process has the breaker for itself. It says so in one warning, and tries again every
//     few seconds, and when it hears of what the others share.
//   - While NATS is away nothing is shared. Nothing is handled either.
package fleet
