// Package dlq keeps, shows, replays and discards dead letters.
//
// # Role
//
// A consumer that gives up on a message stores a letter of it, which [Letter]
// makes: the message byte for byte and, in dlq- headers, why it failed. People and
// tools work on the letters through a [Queue]: list, get, replay, discard,
// statistics, export.
//
// A [Store] is where letters lie. [Stream] is the system's dead-letter stream; the
// parked rows of an outbox (package outbox) are the other one. A queue works on
// both in the same way.
//
// A letter of the stream lies on dlq.<consumer>.<reason>.<event key>. The stream
// keeps one message a subject and, when full, refuses new ones instead of dropping
// old ones. The letter's ID is <consumer>.<event key>. If an event was parked again
// under another reason, after a crash between parking and marking, the newer
// letter counts, and replay and discard remove both. The consumers' ledger, asked
// through [Marks], says what became of an event.
//
// # Guarantees
//
//   - Data, and headers that are the event's own, pass letter and replay
//     unchanged. Server control headers are kept under other names and never
//     take effect again.
//   - Whatever an error text holds, no header is split or added by it.
//   - Every message that the server took can be parked and replayed, also one
//     of the maximum size.
//   - A replay reaches the one consumer that failed. Replaying twice, or again
//     after a crash at any point, lets the event take effect once.
//   - A letter is removed only after its event is stored again, or is known to
//     have taken effect, or was discarded.
//   - Reading leaves nothing behind at the server: a listing uses an ephemeral
//     consumer and deletes it.
//
// # Not guaranteed
//
//   - Order: a replayed event comes after younger events of its key.
//   - Exactly-once for a forced replay of an event whose mark has expired.
package dlq
