package outbox

import (
	"context"
	"errors"
)

// ErrFeedTaken is returned while another relay reads the feed. The relay that gets it
// stands by.
var ErrFeedTaken = errors.New("outbox: another relay reads the feed")

// Feed tells a relay which rows were committed, from the database's own log. It
// remembers how far the relay has dealt with them. Package postgres/cdc has one.
type Feed interface {
	// Tail reads until ctx ends, which is no error, or until it cannot go on; then the
	// relay calls it again. While another relay reads the error matches [ErrFeedTaken].
	//
	// It calls attached once, as soon as it will tell of every row that commits from
	// then on. After attached has returned it calls publish, again and again, with ids
	// of rows in the order of their commits, some perhaps not for the first time. When
	// publish has returned nil those rows are dealt with, and do not come again. An
	// error of either ends Tail.
	Tail(ctx context.Context, attached func(context.Context) error, publish func(ctx context.Context, ids []int64) error) error
	// Health returns nil, or why the feed does not tell of rows, or late.
	Health() error
}
