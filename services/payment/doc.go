// Package payment is the demo's payment service. It charges customers through a
// payment gateway, which belongs to another company. It reacts to
//
//   - order.placed.v1: charges the total, emits payment.captured.v1 or, when the
//     gateway refuses, payment.declined.v1;
//   - inventory.rejected.v1 and inventory.released.v1: gives the money back and
//     emits payment.refunded.v1, with amount 0 when nothing had been charged.
//
// Its state is in the KV bucket [Bucket], one [Record] an order.
//
// # One charge, one refund
//
// The gateway is not on the event bus, so the bus cannot make a call to it
// exactly once. A handler may run again, and then repeats its call with the same
// idempotency key, which is made of the order id. To give the money back the
// service voids that key: in one step the gateway refunds what was charged under
// the key and refuses to charge it from then on. So a charge that is still under
// way, in another replica or in one that crashed, may arrive before the void or
// after it: in both cases a cancelled order ends without a charge.
//
// The record remembers what the service emitted in answer to each event. A
// handler that runs again for the same event emits the same again. Another event
// that asks for what is done already has no effect: a second order.placed.v1
// charges nothing, a second inventory.rejected.v1 refunds nothing.
//
// # Failures
//
//   - A timeout, a broken connection and a status of 500 or more are tried again.
//     After a 429 or 503 the service waits as long as Retry-After says, at most 30 s.
//   - When 15 of the last 20 calls have failed in this way, or by 429, the
//     breaker of the gateway opens, in all processes of the service (package resilience/fleet). Until the gateway works again
//     one process sends it probes. What fails meanwhile spends no attempt.
//   - 402 means that the gateway declines: the service emits payment.declined.v1.
//   - Any other status of 400 to 499 means that the request is wrong. The event is
//     dead-lettered at once.
//
// While the fault "poison" is on, the handler panics for customers whose id
// begins with "poison-", before it charges.
package payment
