// Package outboxtest has the suites that each kind of database has to pass: [Run]
// is about the relay, [RunWrite] about what writes rows and looks after them, and
// [RunLedger] about the SQL ledger.
//
// Everything is real: the database, a NATS server, and, where a relay is killed
// or stopped, processes.
package outboxtest
