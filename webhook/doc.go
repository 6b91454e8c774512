// Package webhook delivers events to an HTTP receiver.
//
// # Role
//
// A [Webhook] is a consumer of chosen event types whose handler POSTs each
// event to one URL, in the CloudEvents HTTP binding. Retries, dead letters and
// the ledger are the consumer's: what the receiver answers decides which of
// them it is (docs/webhooks.md has the table).
//
// # Lifecycle
//
// Make a webhook with [New], which does no I/O, and call [Webhook.Run] once: it
// blocks until its context ends and has then drained.
//
// # Guarantees
//
//   - Every event reaches the receiver at least once, or lies in the dead
//     letters, from where it can be replayed. All its deliveries have one
//     Idempotency-Key, also replays and those of other processes.
//   - Data arrive byte for byte in binary mode, and as the same JSON or the
//     same bytes in structured mode.
//   - Within one process, events of one key are sent one after another in
//     stream order; an event that waits for a retry of up to
//     consumer.RetryPolicy.DeferAfter holds its key.
//   - Nothing of what a receiver answers is trusted: its size is bounded, no
//     redirect leaves its origin, and what goes into errors is printable. The
//     URL's user, path and query, the headers and the secrets do not appear in
//     errors, logs or dead letters.
//
// # Not guaranteed
//
//   - That the receiver gets an event once: an answer can get lost. It has to
//     remember the keys it has taken (examples/receiver does).
//   - Order across processes, replays and longer retries.
package webhook
