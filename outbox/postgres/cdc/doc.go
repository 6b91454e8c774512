// Package cdc tells a relay of package outbox which rows were committed, by change
// data capture: it reads Postgres's write-ahead log instead of searching the table.
//
//	feed, err := cdc.New(url, box, cdc.Config{})
//	relay, err := outbox.NewRelay(box, bus, outbox.RelayConfig{Feed: feed})
//
// It is a package of its own so that who does not use it does not carry its
// dependencies. docs/outbox.md says what the server needs; ADR 0005 says why it
// works as it does.
package cdc
