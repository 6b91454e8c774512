// Package inventory is the demo's stock-keeping service. It reacts to
//
//   - payment.captured.v1: holds all items of the order, or none, and emits
//     inventory.reserved.v1 or inventory.rejected.v1;
//   - order.confirmed.v1: what was held has left the stock for good;
//   - order.cancel_requested.v1: gives back what is held, emits
//     inventory.released.v1, and reserves nothing for the order any more.
//
// Its state is in the bucket [Bucket]: one document an order and one a SKU. A
// KV bucket has no transaction over several keys, so the steps are made to
// converge instead: the order's document decides, what a SKU's document holds
// for an order is put there and taken away by name, and every handler can run
// again from any point at which an earlier run stopped. The one thing
// that no rerun comes back for is what a run that was stalled, and overtaken by
// another replica, holds with its last write before it is stopped: that is
// given back when a replica starts.
//
// Conservation: of each SKU, initial = available + held + reserved, always.
package inventory
