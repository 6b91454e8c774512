// Package host runs the parts of one process, services for the most part,
// behind one HTTP listener, and stops them in order.
//
// Stopping goes: readiness turns red and HTTP stops accepting, requests under
// way get the grace period; then the parts' contexts end and each drains; Run
// returns when all have returned.
package host
