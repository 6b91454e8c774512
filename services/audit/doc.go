// Package audit proves, from the outside, that a run of the demo system kept
// its promises, or names what is wrong.
//
// [Collect] reads the evidence where it is: the payment gateway's books, the
// order service's tables, the other services' records, the event stream and the
// dead letters. [Check] is pure and holds it against the invariants. [Run] does
// both. The auditor shares no code with the services it audits: it knows the
// outside contract (docs/contract.md), selects from the documented tables and
// reads plain JSON.
//
// The system must be at rest: nothing in flight, nobody placing orders.
// Otherwise the parts of the evidence are from different moments and do not
// fit together. The auditor changes nothing.
package audit
