package outbox

import (
	"context"
	"errors"
)

// ErrFeedTaken is returned while another relay reads the feed: Postgres lets
// one read a slot. Whoever gets it stands by.
var ErrFeedTaken = errors.New("outbox: another relay reads the feed")

// Feed tells a relay which rows were committed, from the database's own log
// (package postgres/cdc). It remembers how far they were dealt with.
type Feed interface {
	// Tail reads until ctx ends, which is no error, or until it cannot go on;
	// the relay calls it again. Errors match [ErrFeedTaken] while another relay reads.
	//
	// It calls attached once, when every row that commits from now on will come.
	// After that has returned it calls publish, again and again, with the ids of
	// rows in the order of their commits, some perhaps not for the first time.
	// Rows are dealt with, and do not come again, when publish has returned nil;
	// an error of either ends Tail.
	Tail(ctx context.Context, attached func(context.Context) error, publish func(ctx context.Context, ids []int64) error) error
	// Health returns nil, or why rows do not come this way, or come late.
	Health() error
}
