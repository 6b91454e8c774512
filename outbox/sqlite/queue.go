package sqlite

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// thisProcess bounds the wait for other writers of this process: a transaction
// that waits for itself ends with an error.
const thisProcess = time.Minute

// writers are those of one process, of which one has the turn.
type writers struct {
	queue queue
	gate  *gate
	syncs syncs
}

// enter waits for the caller's turn, and for the gate. The error is the
// context's, ErrQueue, or ErrDisk.
func (w *writers) enter(ctx context.Context) (turn, error) {
	if err := w.syncs.failed(); err != nil {
		return turn{}, err
	}
	if err := w.queue.enter(ctx); err != nil {
		return turn{}, err
	}
	if err := w.gate.pass(ctx); err != nil {
		w.queue.leave()
		return turn{}, err
	}
	return turn{w}, nil
}

// turn is one writer's. The zero turn is that of those who need none.
type turn struct{ writers *writers }

// locked says that the database is locked: others may come to the gate.
func (t turn) locked() {
	if t.writers != nil {
		t.writers.gate.leave()
	}
}

// end ends it, without having committed anything. It is called once, or done is.
func (t turn) end() {
	if t.writers != nil {
		t.writers.gate.leave()
		t.writers.queue.leave()
	}
}

// done ends it, after something was committed, and returns when that is on disk.
func (t turn) done() error {
	if t.writers == nil {
		return nil
	}
	t.end()
	return t.writers.syncs.wait()
}

// queue lets one in at a time, first come, first served.
type queue struct {
	mu      sync.Mutex
	taken   bool
	waiting list.List // of chan struct{}, closed when it is one's turn
}

// enter returns when it is the caller's turn, which ends with leave. The error
// is the context's, or ErrQueue.
func (q *queue) enter(ctx context.Context) error {
	q.mu.Lock()
	if !q.taken {
		q.taken = true
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	place := q.waiting.PushBack(turn)
	q.mu.Unlock()

	patience := time.NewTimer(thisProcess)
	defer patience.Stop()
	var err error
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-patience.C:
		err = ErrQueue
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the same moment: pass it on
		q.next()
	default:
		q.waiting.Remove(place)
	}
	return err
}

// leave ends the caller's turn.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next()
}

func (q *queue) next() {
	first := q.waiting.Front()
	if first == nil {
		q.taken = false
		return
	}
	close(q.waiting.Remove(first).(chan struct{}))
}
