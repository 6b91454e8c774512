// Package payment is the demo's payment service. It charges customers at an
// outside gateway and reacts to
//
//   - order.placed.v1: charges the total, emits payment.captured.v1 or, when the
//     gateway refuses, payment.declined.v1;
//   - inventory.rejected.v1 and inventory.released.v1: gives the money back and
//     emits payment.refunded.v1, with amount 0 when nothing had been charged.
//
// Its state is in the bucket [Bucket], one [Record] an order.
//
// # One effect, whatever is retried
//
// The gateway knows nothing of the event bus, so exactly-once ends at its door:
// a handler may run again, and then uses the same idempotency key, made of the
// order id. Giving money back is a void of that key: the gateway refunds what
// was charged under it, and refuses to charge it from then on, in one step. So
// it does not matter whether a charge under way, in another replica or in one
// that crashed, comes before or after: a cancelled order is left without one.
//
// The record remembers what each event led to. A handler that runs again for
// the same event emits the same; another event that finds the work done has no
// effect: a second order.placed.v1 charges nothing, a second rejection refunds nothing.
//
// # Failures
//
// Timeouts, broken connections and 5xx are tried again; 429 and 503 after what
// their Retry-After asks for, at most 30 s. A 402 is an answer like any other.
// Other answers below 500 mean that the request is wrong and are dead-lettered at once.
//
// While the fault "poison" is on, the handler panics for customers whose id
// begins with "poison-", before it charges.
package payment
