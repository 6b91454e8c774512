// Package outbox lets a database and the bus agree: what a service commits to
// its own SQL database is published, what it rolls back is not, and an event
// that comes in takes effect once.
//
//   - [Outbox.Add] writes events into the caller's own transaction, beside the
//     business rows: both commit, or neither.
//   - [Ledger] is the ledger of a consumer whose handlers work in the database. A
//     handler takes its transaction from its context ([Tx]). The mark that the event
//     is handled, the handler's changes and the events that follow commit together.
//   - [Relay] publishes committed rows to JetStream and marks them. The consumer of a
//     Ledger runs one; a process without a consumer runs it by itself.
//
// Databases are SQLite (package sqlite, the embedded default) and Postgres
// (package postgres). The tables are the package's interface to other
// languages (docs/outbox.md).
//
// # Guarantees
//
//   - A committed row is published at least once, under one message id; a row
//     that was rolled back never. A row is marked as published only after a
//     stream has acknowledged it.
//   - Rows of one key are published in the order of their ids, as far as they are
//     committed: one whose transaction commits after a later row was published
//     comes after it. A row that waits for its next try holds back its key, no other.
//   - A row that can never be published is parked (DEAD_LETTER) with its story,
//     and no longer holds its key.
//
// # Not guaranteed
//
//   - That a message is stored once: a relay that dies between acknowledgement
//     and mark publishes again. The stream drops the copy within its duplicate
//     window, the consumers' ledgers recognise it after that.
//   - Order over keys.
package outbox
