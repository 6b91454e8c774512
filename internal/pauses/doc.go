// Package pauses keeps what holds consumers up: an operator's pause and the state of
// their fleet-wide breakers. A consumer has one document in a KV bucket, which all of
// its processes watch and change by compare-and-set.
//
// All times are of the server's clock. Who writes one adds a duration to what the
// server says that the time is, and who reads one compares it with that. So a process
// whose own clock is wrong does no harm.
package pauses
