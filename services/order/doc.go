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
// Its state is in the bucket [Bucket], one [Order] a document.
//
// # Guarantees
//
//   - An order that was answered with 202 has been announced: its event is
//     stored. The record is written first and the event published second; what
//     a crash or an outage leaves unannounced is announced by the customer's
//     retry or by [Service.Run], whichever comes first. The events' ids are
//     derived from the order's, so announcing twice is harmless.
//   - One idempotency key is one order: the order's id is made from the key, so
//     the record itself remembers the request.
//   - An order ends once. What comes after the end changes nothing, in whatever
//     order events arrive.
//   - An order that is stuck is cancelled at its deadline: whatever was done for
//     it is undone as if the customer had asked for it.
//
// # Not guaranteed
//
//   - That an order's end and its deadline keep to the second: what is first in
//     the record wins, and the other changes nothing.
//   - That a request answered with an error has not been accepted: after a 503
//     the order may exist. Sending the request again with the same key tells.
package order
