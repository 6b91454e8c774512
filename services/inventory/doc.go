// Package inventory is the demo's stock-keeping service. It reacts to
//
//   - payment.captured.v1: holds all items of the order, or none, and emits
//     inventory.reserved.v1 or inventory.rejected.v1;
//   - order.confirmed.v1: what was held has left the stock for good;
//   - order.cancel_requested.v1: gives back what is held, emits
//     inventory.released.v1, and reserves nothing for the order any more.
//
// Its state is in the event stream (package state): one document an order,
// state.inventory.order-<id>, and one a SKU, state.inventory.sku-<sku>. A step
// changes the order's document and those of all its items together with the
// mark that its event is done and with what it emits, or nothing at all. So a
// crash leaves nothing half done, and a second event of a kind, with an id of
// its own, finds in the order's document that it comes too late.
//
// Conservation: of each SKU, initial = available + held + reserved, always.
package inventory
