// Package state keeps a consumer's documents in the event stream, for services
// that want no database.
//
// # Role
//
// A handler reads documents ([Store.Get]) and returns changes of them
// ([Document.Put], [Document.Delete]) in its step. The ledger stores the changes,
// the outgoing events and the mark that the event is done in one atomic batch. The
// consumer's ledger has to be a [dedup.Partitions]. A document is one message with
// JSON data on the subject state.<consumer>.<key>, such as
// state.inventory.sku-widget. It is kept for as long as the stream exists.
//
// # Guarantees
//
//   - Atomic: all changes of a step are stored, once, or none is. A step may change
//     several documents, such as an order and the stock of its items.
//
//   - Optimistic concurrency: a step is committed only if every document that it
//     changes is still as its handler read it. Otherwise the handler runs again on
//     the new version. That is not a failed attempt.
//
//   - No result of a handler rests on a stale or uncommitted document. If the handler
//     has read documents with its context, its result is kept only if they were
//     committed and have not changed since. That holds for an error, too, and for a
//     step that changes none of them. Otherwise the handler runs again.
//
//   - Within one process a step may read what an earlier step has written, before that
//     is committed. So a document that every event changes is written once a batch,
//     not once an event.
//
//   - A document that only this process changes is read once, and again after its
//     partition was somebody else's. One that others change, too, is read by each
//     handler. A document in memory may be old: then the handler runs again, as after
//     any other change.
//
//   - A lost document is noticed. A document that was stored with [Store.Seed] and is
//     gone, because the event stream was purged for example, is an outage. It is not
//     taken for a document that never existed.
//
// # Not guaranteed
//
//   - That a document which a step reads and does not change stays the same until the
//     step is stored. It is checked right before that, not together with it. A step
//     that needs both together puts the value back unchanged.
//   - Speed, when several processes change one document at once: their batches
//     conflict. Divide the keys among the processes, or split the document.
//   - A consistent listing: [Store.Each] may or may not see changes that are made while
//     it runs.
package state
