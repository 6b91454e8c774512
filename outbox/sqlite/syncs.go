package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// syncs has the commits of this process wait for the disk together. SQLite by
// itself syncs the write-ahead log in each commit, while all other writers wait
// (synchronous FULL). Here a commit writes the log, which ends the writer's turn,
// and returns after a sync that began later: one serves all that have come by
// then. What it promises is the same.
//
// Others see what is committed a moment before it is on disk, as the log is
// written in order: whoever builds on it and commits is on disk no earlier.
type syncs struct {
	sync func() error // writes to disk what was committed before

	mu      sync.Mutex
	asked   uint64
	done    uint64        // as many of those who asked have been served
	flight  chan struct{} // closed when the sync under way ends; nil for none
	failure error         // of a sync: nobody knows what of the log is on disk
}

// wait returns when all is on disk that was committed before it was called.
func (s *syncs) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	for mine := s.asked; s.done < mine && s.failure == nil; {
		if s.flight != nil {
			flight := s.flight
			s.mu.Unlock()
			<-flight
			s.mu.Lock()
			continue
		}
		s.fly()
	}
	return s.failure
}

// fly syncs for all that have asked. It is called with mu, which is free meanwhile.
func (s *syncs) fly() {
	flight, most := make(chan struct{}), s.asked
	s.flight = flight
	s.mu.Unlock()
	err := s.sync()
	s.mu.Lock()
	s.flight = nil
	close(flight)
	if err != nil {
		s.failure = fmt.Errorf("%w: %w", ErrDisk, err)
		return
	}
	s.done = most
}

// failed is why nobody may write any more: after a sync that has failed the next
// one can succeed without having written what that one should have.
func (s *syncs) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// syncLog syncs a database's write-ahead log. Where there is none, SQLite has moved
// all of it to the database, and synced that, before it deleted the log. The
// database itself is not opened: to close a file drops this process's POSIX locks on
// it, those of its connections as well.
func syncLog(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(syncFile(f), f.Close())
}
