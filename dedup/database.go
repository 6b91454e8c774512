package dedup

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// Database is where [SQL] keeps its marks, and where the handlers of its
// consumer may work in transactions; outbox.Inbox is one. A mark is a row of
// bytes under a consumer and an event key. Its revision is never 0 and grows
// with each write; a mark whose lifetime is over is not there. An error that
// matches [bus.ErrConflict] says that a mark is not at the revision which the
// call had to follow (0: no mark), one that matches [bus.ErrBusy] that others
// were in the way: nothing was written then, and doing it again is safe.
type Database interface {
	// Admit lets the handler of an event begin a transaction, until leave,
	// which rolls back what is not committed. A newer admission of the event
	// ends an earlier one. leave may be called more than once.
	Admit(c event.Consumer, k event.EventKey) (commit Commit, leave func())
	// Read returns a mark and when it was written, by the database's clock;
	// revision 0 when there is none.
	Read(ctx context.Context, c event.Consumer, k event.EventKey) (mark []byte, revision uint64, written time.Time, err error)
	// Write replaces a mark in a transaction of its own. A lifetime of 0 is
	// for ever. While the handler of the event holds all other writers off,
	// nothing is written and the revision stays what it is.
	Write(ctx context.Context, c event.Consumer, k event.EventKey, after uint64, mark []byte, lifetime time.Duration) (revision uint64, err error)
	// Now is the database's clock.
	Now(ctx context.Context) (time.Time, error)
}

// Commit replaces the mark of an admitted event and puts messages into the
// outbox, in the transaction of the event's handler or, if it has begun none,
// in a new one, and commits. A message whose id is in the outbox already is
// left out. After a conflict the handler's transaction is still open; after any
// other error it has been rolled back, and nothing can be committed before the
// handler has begun another.
type Commit = func(ctx context.Context, after uint64, mark []byte, lifetime time.Duration, out []*nats.Msg) (revision uint64, err error)
