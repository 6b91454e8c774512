// Package bus is one NATS connection: it publishes events and reads streams.
//
// # Role
//
// A [Bus] publishes events ([Bus.Publish]), messages ([Bus.Send]) and atomic
// batches ([Bus.SendBatch]), reads streams and buckets, and tells which errors are
// outages ([IsOutage]). The packages topology, dedup, dlq, outbox and consumer
// stand on it.
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
//
// # Not guaranteed
//
//   - With the server's default sync interval an acknowledged event can be
//     lost in a power failure of a single-node server; run it with
//     sync_interval: always, or three replicas.
//   - Order between two concurrent publishes.
package bus
