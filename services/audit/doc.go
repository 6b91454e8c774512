// Package audit checks from the outside whether a run of the demo system has kept
// its promises, and lists what is wrong.
//
// [Collect] reads the evidence: the payment gateway's books, the order service's
// tables, the inventory's documents and pages, the event stream and the dead letters. [Check]
// compares the evidence with the invariants; it does no I/O. [Run] does both. The
// audit shares no code with the services: it knows only the contract
// (docs/contract.md), selects from the documented tables and reads plain JSON.
//
// The system must be at rest: no event is being handled, and nobody places orders.
// Otherwise the parts of the evidence are read at different moments and do not fit
// together. The audit changes nothing.
package audit
