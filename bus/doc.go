// Package bus is the event model and the wire: CloudEvents on JetStream subjects.
//
// # Role
//
// A [Definition] ties an event type to the Go type of its data and makes a
// [Draft]; sealing a draft gives an [Event], a CloudEvent 1.0 from
// cloudevents/sdk-go. A [Bus] is one NATS connection: it publishes events,
// provisions the streams and buckets ([Topology]) and is what the other
// packages (dedup, dlq, consumer) stand on. The binding (binding.go) is the
// CloudEvents NATS protocol binding, binary and structured.
//
// # Lifecycle
//
// [Connect] dials and waits for a late server; the connection then reconnects
// for ever with jitter. [Bus.Close] flushes what is in flight and closes.
//
// # Guarantees
//
//   - [Bus.Publish] returning nil means that a stream stored the event, or had
//     stored it before ([Receipt.Duplicate]). Publishing again after any error
//     is safe: the message id is the event key, so a retry is recognised
//     within the stream's duplicate window, and by every consumer's ledger
//     beyond it.
//   - Data bytes reach the consumer identical to the last bit.
//
// # Not guaranteed
//
//   - With the server's default sync interval an acknowledged event can be
//     lost in a power failure of a single-node server; run it with
//     sync_interval: always, or three replicas.
//   - Order between two concurrent publishes.
package bus
