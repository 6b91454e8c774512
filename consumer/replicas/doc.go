// Package replicas tells each process of a service how many of them there are, so
// that they can share what is limited for all together, a rate limit for one
// (resilience.Guard.SetShare).
//
// # Lifecycle
//
// [Run] blocks until its context ends. Then the process is no longer counted.
//
// # Guarantees
//
//   - Who comes is counted before it is told a number, and by the others within a second.
//   - Who ends is not counted by the others after a second; who dies, after 4 to 6 s.
//   - While a process cannot follow the others it goes on with the number that it knows.
//
// So a rate that is shared by these numbers is kept within 10 % over ten seconds while
// processes come and end. When one dies, its part of the rate is unused until the
// others know.
//
// # Not guaranteed
//
//   - While some processes cannot reach NATS, the others count without them, and all
//     together may exceed what they share.
//   - Before the first number, which needs NATS, a process knows nothing of others.
package replicas
