// Command processmanager takes orders through payment, inventory and shipping, from a
// centre. It sends a command to one service after another and waits for the reply. If
// a service cannot do its part, or if the order's time is over, the services undo what
// they have done, in the reverse order.
//
// It is one consumer. An order's state is a document (package state), such as
// state.orders.ord-1. The ledger by partition (dedup.NewPartitions) stores the document,
// the next command and the mark of the reply that led to it in one piece. So the
// process can be killed at any moment: another one goes on, and each command is stored
// once. Run as many of them as you like. Each order belongs to one of them at a time.
//
// flow.go is the flow itself: it does no I/O and fits on a page.
//
// # The services
//
// A service handles its two commands and emits the replies, as events of the same key:
//
//   - To undo is always possible. It is also possible before the service has got the
//     command to do: then the service replies that it is undone, and never does it.
//   - A command may be handled twice if its handler has effects outside, as with any
//     consumer. The service needs an idempotency key for them: the order's id.
//
// You can play the services by hand. Start a NATS server with JetStream, then
//
//	farandole topology apply
//	go run ./examples/processmanager &
//	farandole publish order.placed.v1 ord-1 --data '{"sku":"anvil","cents":125000}'
//	farandole publish payment.charged.v1 ord-1 --data '{}'
//	farandole publish inventory.refused.v1 ord-1 --data '{"reason":"sold out"}'
//	farandole publish payment.refunded.v1 ord-1 --data '{}'
//	farandole tail --from-start --no-follow --data
//
// shows the commands between the replies, and order.cancelled.v1 at the end.
package main
