// Package order is the demo's order service. Customers place and cancel their
// orders here, and the service decides how each order ends. It
//
//   - takes an order over HTTP and emits order.placed.v1;
//   - takes a request to cancel an order and emits order.cancel_requested.v1;
//   - sets a timer for each order.placed.v1. If the order is not final when the
//     timer's event, order.deadline.v1, arrives, it emits
//     order.cancel_requested.v1;
//   - reacts to payment.captured.v1 (the order is paid), to inventory.reserved.v1
//     (emits order.confirmed.v1), and to payment.declined.v1 and
//     payment.refunded.v1 (emits order.cancelled.v1).
//
// Its state is in the table orders of a SQL database, SQLite or Postgres, one
// [Order] a row. The tables of package outbox are in the same database.
//
// # Guarantees
//
//   - A request that was answered with 202 is committed: the order and its event
//     are written in one transaction. The event is published as soon as NATS can
//     be reached. The event of a transaction that is rolled back is never published.
//   - One idempotency key is one order for a day (package idempotency), and one
//     request is one order for ever: the order's id is made from customer, key and body.
//   - An event takes effect once: the order's new status, the mark that the event
//     is handled, and the events that follow from it are one transaction.
//   - An order becomes final once. An event that arrives later changes nothing, in
//     whatever order events arrive.
//   - An order that is stuck is cancelled at its deadline, as if its customer had
//     asked for it.
//   - Lists are stable: an order that exists when a client reads the first page is
//     on exactly one page, unless the list is of one status and the order's changes.
//
// # Not guaranteed
//
//   - That an order is cancelled in the second of its deadline. Whichever change
//     of the order is committed first counts; the other does nothing.
//   - That a request with an error as its answer was not accepted: after a 503 the
//     order may exist. To find out, send the request again with the same key.
//   - That a list is sorted to the millisecond: each process has its own clock.
package order
