// Package pg starts a private PostgreSQL server: for tests (package pgtest
// wraps it for them) and for benchmarks.
//
// The server is a real one, from the binaries of this machine, and has a
// temporary directory of its own. It listens on a free port of the loopback
// interface and trusts whoever connects. Nothing outlives the process that
// started it: a guard, a shell that waits for the end of that process, stops
// the server and removes its directory even when the process was killed.
//
// Postgres refuses to run as root; started by root, the server runs as the
// user postgres, or else nobody.
package pg
