// Package inventory is the demo's stock-keeping service. It handles
//
//   - payment.captured.v1: it holds all items of the order, or none. It emits
//     inventory.reserved.v1 or inventory.rejected.v1.
//   - order.confirmed.v1: the held items leave the stock for good. If it comes before
//     payment.captured.v1 it yields to that.
//   - order.cancel_requested.v1: it releases the held items, and holds none for this
//     order from then on. It emits inventory.released.v1.
//
// Its state is in the event stream (package state). Each order has a document, such
// as state.inventory.order-ord-1. Each SKU has one, such as
// state.inventory.sku-widget. A step is stored in one piece: the changes of these
// documents, the mark that the event is done, and the events that it emits. So a
// crash leaves nothing half done. A second payment.captured.v1 of an order, with
// another id, changes nothing, because the order's document says that the decision
// has been made.
//
// For each SKU, initial = available + held + reserved at all times.
package inventory
