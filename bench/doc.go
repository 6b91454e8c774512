// Command bench measures Farandole beside its peers: the same events, the same
// nats-server processes, in one go ("make bench"). It is a module of its own, so
// that the peers stay out of what Farandole's users build.
//
// It prints tables and which of the project's targets are met, and writes all
// figures to a JSON file. Sections:
//
//   - hop: consume, deduplicate, emit, acknowledge; each run is verified at the server
//   - publish: bus.PublishAsync beside the client library alone
//   - latency: one hop on an idle system, until the next consumer has the event
//   - saga: the demo's orders, from placed to final, on SQLite and Postgres
//   - codec: one event to its message and back
//   - policy: what the policies of package resilience cost a call, beside gobreaker and failsafe-go
//   - memory: a consumer's process with many events waiting and with few
//   - processes: several processes of a consumer together, and how long events stand
//     still when one joins, stops or is killed
//   - remembered: memory of server and consumer for each event that a ledger remembers,
//     and how long a new process takes to start with them
//   - outbox: a relay beside publishing alone
//   - outage: a dependency of three processes is down: how soon all are idle, which calls
//     reach it nevertheless, and how long it takes afterwards until all is handled
//
// Runs of one repetition are interleaved, so that noise hits all alike; figures
// are medians over the repetitions. It needs a Unix system and the go command;
// memory is measured on Linux.
package main
