// Package demo is the engine of "farandole demo": a whole system in this
// process, everything that can go wrong with it, and the proof that nothing did.
//
// A run starts a NATS server with a temporary store, the payment gateway, and
// the services, each on connections of its own, as if each were a process. The
// order service's database is a temporary one, too: SQLite, or a schema in Postgres.
// It places orders over HTTP and meanwhile repeats events, breaks the gateway,
// kills services and stores messages that nobody can handle. When all is at
// rest it switches the faults off, replays the dead letters, waits again and
// audits.
//
// What an order goes through is drawn from the seed, and each kind of order
// has one possible end; so a seed has one business outcome, whatever the
// timing and wherever the crashes hit.
package demo
