// Package order is the demo's order service: the way in for customers, and the
// one that says how an order ended. It
//
//   - takes orders over HTTP and emits order.placed.v1, and takes the wish to
//     cancel one and emits order.cancel_requested.v1;
//   - sets a timer for each order.placed.v1, and when order.deadline.v1 finds the
//     order still open, emits order.cancel_requested.v1 for it;
//   - reacts to payment.captured.v1 (the order is paid), inventory.reserved.v1
//     (emits order.confirmed.v1), payment.declined.v1 and payment.refunded.v1
//     (emit order.cancelled.v1).
//
// Its state is in the table orders of a SQL database, SQLite or Postgres, one
// [Order] a row, with the outbox's and inbox's tables (package outbox) beside it.
//
// # Guarantees
//
//   - An order that was answered with 202 is committed, and its event with it:
//     both are written in one transaction. The relay publishes the event when
//     NATS can be reached. What is rolled back is never heard of.
//   - One idempotency key is one order: the order's id is made from the key, so
//     the row itself remembers the request.
//   - An event that comes in takes effect once: the order's new state, the mark
//     that the event was handled and what follows from it are one transaction.
//   - An order ends once. What comes after the end changes nothing, in whatever
//     order events arrive.
//   - An order that is stuck is cancelled at its deadline: whatever was done for
//     it is undone as if the customer had asked for it.
//   - Lists are stable: an order that is there when a list begins is on exactly
//     one of its pages, unless its status leaves the list's.
//
// # Not guaranteed
//
//   - That an order's end and its deadline keep to the second: what is first in
//     the table wins, and the other changes nothing.
//   - That a request answered with an error has not been accepted: after a 503
//     the order may exist. Sending the request again with the same key tells.
//   - That lists are in the order of placing to the millisecond: each process
//     has its own clock.
package order
