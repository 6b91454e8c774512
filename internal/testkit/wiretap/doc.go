// Package wiretap lets a test come between a NATS client and its server, one
// protocol message at a time: a message gets lost, the connection breaks
// before or after a certain one, or the client falls silent for ever, as a
// process does that is killed in the middle of what it sends.
package wiretap
