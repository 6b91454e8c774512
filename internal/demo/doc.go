// Package demo runs "farandole demo": a whole system in this process, with faults
// injected into it, and an audit that checks that the faults did no harm.
//
// A run starts a NATS server with a temporary store, the payment gateway, and the
// services. Each service has its own connections, as if it were a process. The
// order service's database is temporary, too: SQLite, or a schema in Postgres.
//
// The run places orders over HTTP. Meanwhile it repeats events, breaks the gateway,
// kills services and stores messages that no service can handle. When no service
// has anything left to do, it switches the faults off, replays the dead letters,
// waits again and audits the system.
//
// The seed decides the kind of each order ("the gateway declines it", "out of
// stock"), and an order of a kind can end in one way only. So with the same seed
// the same orders are confirmed and cancelled, whenever the crashes happen.
package demo
