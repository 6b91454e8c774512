package sqlite

import (
	"context"
	"time"
)

// thisProcess bounds the wait for other writers of this process: a transaction
// that waits for itself ends with an error.
const thisProcess = time.Minute

// writers are the writers of one process. One has the turn; the others wait for it
// in the order in which they came.
type writers struct {
	// turns is full while somebody has the turn: who comes waits to send. Go serves
	// those who wait for a channel first come, first served.
	turns chan struct{}
	gate  *gate
	syncs syncs
}

func newWriters() *writers { return &writers{turns: make(chan struct{}, 1)} }

// enter waits for the caller's turn, and for the gate. The error is the
// context's, ErrQueue, or ErrDisk.
func (w *writers) enter(ctx context.Context) (turn, error) {
	if err := w.syncs.failed(); err != nil {
		return turn{}, err
	}
	patience := time.NewTimer(thisProcess)
	defer patience.Stop()
	select {
	case w.turns <- struct{}{}:
	case <-ctx.Done():
		return turn{}, ctx.Err()
	case <-patience.C:
		return turn{}, ErrQueue
	}
	if err := w.gate.pass(ctx); err != nil {
		<-w.turns
		return turn{}, err
	}
	return turn{w}, nil
}

// turn is one writer's. The zero turn is that of those who need none.
type turn struct{ writers *writers }

// locked says that the database is locked: other processes may come to the gate.
func (t turn) locked() {
	if t.writers != nil {
		t.writers.gate.leave()
	}
}

// end gives the turn to the next. It is called once.
func (t turn) end() {
	if t.writers != nil {
		t.writers.gate.leave()
		<-t.writers.turns
	}
}
