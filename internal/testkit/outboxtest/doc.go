// Package outboxtest proves that an outbox and its relay keep their promises on
// a database: [Run] is the conformance suite that packages sqlite and postgres pass.
//
// Everything is real: the database, a NATS server, and, where a relay is killed
// or stopped, processes. It is imported from tests only.
package outboxtest
