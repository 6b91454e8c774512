// Package durable looks after the durables of a consumer: what the server keeps
// of a consumer's place in a stream, and of the subjects that it is given.
//
// # Role
//
// All replicas of a service share one durable for each stream, also replicas of
// different versions. [Durable.Bind] brings it to what this process needs, and
// takes nothing away that another one may need. [Durable.Tend] keeps it so while
// the process runs. A [Narrowing] takes subjects out of it, when a person says so.
//
// A subject that is added to a running durable would begin where the durable
// stands: the events of it that are stored already would never come. So a second
// durable, <name>_catchup, brings these first (catchup.go). DESIGN.md, "The
// durable", says what happens when a process dies in between.
//
// # Guarantees
//
//   - Filters are only added. The longest AckWait and the largest MaxAckPending of
//     all replicas win. What a person has set besides stays.
//   - A durable that was lost is made anew and starts where the ledger's memory
//     does, so that nothing takes effect again.
//
// # Not guaranteed
//
//   - That an event comes once: both durables may bring it. The ledger knows it.
package durable
