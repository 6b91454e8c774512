// Package resilience keeps the trouble of a dependency small.
//
// # Role
//
// A [Guard] puts policies around the calls of one dependency, in one order: retry, rate
// limit, bulkhead, breaker, timeout. A [Fallback] answers in place of a dependency that
// does not work. A [Transport] is the same for HTTP. Make one guard for each
// dependency, when the program starts, and share it.
//
// A [Breaker] stops calls to a dependency that fails, for a time, and lets a few
// probes find out whether it works again.
//
// In a consumer's handler, return the guard's errors as they are: one of a call that
// was not made ([ErrOpen], [ErrLimited], [ErrFull]) spends no attempt of the event.
//
// # Lifecycle
//
// Nothing here does I/O of its own or has to be closed. There is no goroutine but the
// callers'; a timer runs while a probe does.
//
// # Guarantees
//
//   - While a breaker is half-open, it has granted at most Probes permits that were
//     not given back as neutral, however many callers there are.
//   - A permit counts once. What is reported after the breaker has changed its state
//     does not count. A probe that reports nothing within ProbeTimeout has failed.
//   - A panic, also one that ends the goroutine, goes through to the caller. It loses
//     no permit, place or timer, and no fallback hides it.
//   - A call that gives up waiting puts its token back.
//   - Times are those of the monotonic clock: setting the computer's clock changes nothing.
//
// # Not guaranteed
//
//   - A call is not abandoned: what ignores its context keeps its place until it returns.
//   - State is that of one process, and a new process begins with closed breakers and
//     full buckets.
//   - Places of a bulkhead are given out nearly, but not strictly, in order.
package resilience
