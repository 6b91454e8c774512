package sqlite

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

const (
	// gatePoll is the average pause between two tries to pass the gate.
	gatePoll = 2 * time.Millisecond
	// gatePatience is how long a writer waits at the gate before it goes on without.
	// The process that has the gate may be stopped.
	gatePatience = 2 * time.Second
	// gateStuck is how long after that no writer of this process waits at the gate.
	gateStuck = 10 * time.Second
)

// gate is what the writers of all processes pass before they try to lock the
// database: a lock on a file beside it, as in orders.db-queue, which a writer holds
// until it has the database's lock. Without it a process that commits and begins again
// has locked the database before another one tries next, again and again.
//
// Between processes it is fair by chance, not first come, first served. It is a
// courtesy: nothing but fairness depends on it. Only who has the turn in its process
// uses it.
type gate struct {
	held  bool      // by this process
	stuck time.Time // until then nobody waits at it

	mu     sync.Mutex // guards what follows: a database may be closed while statements run
	closed bool
	file   *os.File
}

// openGate makes the file with the rights of the database, as SQLite does with
// its own.
func openGate(path string) (*gate, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+"-queue", os.O_RDWR|os.O_CREATE, info.Mode().Perm())
	if err != nil {
		return nil, err
	}
	return &gate{file: f}, nil
}

// pass returns when this process holds the gate, or has waited for it in vain. The
// error is the context's.
func (g *gate) pass(ctx context.Context) error {
	now := time.Now()
	if now.Before(g.stuck) {
		g.held = g.take()
		return nil
	}
	for deadline := now.Add(gatePatience); ; {
		if g.held = g.take(); g.held {
			return nil
		}
		if time.Now().After(deadline) {
			g.stuck = time.Now().Add(gateStuck)
			return nil
		}
		if !backoff.Wait(ctx, backoff.Around(gatePoll)) {
			return ctx.Err()
		}
	}
}

// leave gives the gate to others. Doing it again does nothing.
func (g *gate) leave() {
	if g.held {
		g.held = false
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.closed { // else closing has unlocked it
			unlock(g.file) //nolint:errcheck // what is locked can be unlocked
		}
	}
}

// take takes the gate if nobody holds it.
func (g *gate) take() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.closed && lock(g.file) == nil
}

func (g *gate) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.file.Close()
}
