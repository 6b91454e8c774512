package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// syncs lets the commits of one process wait for the disk together (ADR 0006). With
// synchronous FULL SQLite would sync the write-ahead log in each commit, while all other
// writers wait. With NORMAL a commit writes the log and ends the writer's turn; then
// wait returns after a sync that began later. One sync serves all who have come by then.
//
// Others see what is committed a moment before it is on disk. The log is written in
// order: whoever builds on what it has read and commits is on disk no earlier.
type syncs struct {
	sync func() error // writes to disk what was committed before

	mu      sync.Mutex
	asked   uint64        // how many have asked for a sync
	served  uint64        // how many of them have been served, in the order they asked
	running chan struct{} // closed when the sync that runs ends; nil while none runs
	failure error         // of a sync: nobody knows what of the log is on disk
}

// wait returns when all is on disk that was committed before it was called. The
// error matches ErrDisk.
func (s *syncs) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	for mine := s.asked; s.served < mine && s.failure == nil; {
		if s.running == nil {
			s.run()
			continue
		}
		ended := s.running
		s.mu.Unlock()
		<-ended
		s.mu.Lock()
	}
	return s.failure
}

// run syncs for all who have asked. It is called with mu, which is free meanwhile.
func (s *syncs) run() {
	ended, asked := make(chan struct{}), s.asked
	s.running = ended
	s.mu.Unlock()
	err := s.sync()
	s.mu.Lock()
	s.running = nil
	close(ended)
	if err != nil {
		s.failure = fmt.Errorf("%w: %w", ErrDisk, err)
		return
	}
	s.served = asked
}

// failed returns why nobody may write any more, nil while all may. After a sync that
// has failed the next one can succeed without having written what that one should have.
func (s *syncs) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// syncLog syncs the write-ahead log of the database at path. If there is no log, SQLite
// has moved all of it to the database, and synced that, before it deleted the log. The
// database itself is not opened: closing a file drops all POSIX locks that the process
// has on it, those of SQLite's connections as well.
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
