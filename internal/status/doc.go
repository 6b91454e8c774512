// Package status reads where a whole system stands: its streams, its consumers and
// what waits for them, its dead letters. The command line shows it, and gives it to
// Prometheus. Everything is as the server tells anybody who may ask.
package status
