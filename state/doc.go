// Package state keeps a consumer's documents in the event stream, for services
// that want no database.
//
// # Role
//
// A handler reads documents ([Store.Get]) and returns changes of them
// ([Document.Put], [Document.Delete]) in its step. The ledger commits the
// changes, the outgoing events and the mark that the event is done in one
// atomic batch; it has to be a [dedup.Stream]. A document lies on
// state.<consumer>.<key>, one message a document, as JSON, for as long as the
// stream exists.
//
// # Guarantees
//
//   - All changes of a step become durable, once, or none does: also several
//     documents, such as an order and its items' stock.
//
//   - Optimistic concurrency: a step is committed only if every document it
//     changes is still as its handler saw it. Otherwise the handler runs again,
//     on what is there now; that is no failed attempt.
//
//   - A verdict rests on what is committed: whatever a handler makes of documents
//     that it has read with its context, also an error, also a step that leaves them
//     as they are, is kept only if they were committed and still like that
//     afterwards. Otherwise the handler runs again.
//
//   - Within one process steps build on each other before they are committed:
//     a document that every event changes is written once a batch, not once an event.
//
//   - Loss is not silent: a document that was seeded ([Store.Seed]) and is gone, with a
//     purged event stream say, is an outage and not a document that never was.
//
// # Not guaranteed
//
//   - That a document which a step has read and does not change stays as it is
//     until the step is stored: it is checked right before. Putting the value back
//     as it is makes both one.
//   - Speed for one document that several processes change at once: their
//     batches contend. Divide the keys, or the document.
//   - A listing at one moment: [Store.Each] sees changes made meanwhile or not.
package state
