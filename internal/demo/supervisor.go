package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
)

// process is what the process of a service would run and own.
type process struct {
	// run works until ctx ends.
	run func(ctx context.Context) error
	// cut closes the process's listener and database at once. Nil if it has none.
	cut func()
}

// instance is one run of a service, from its start until it is stopped or killed.
type instance struct {
	process
	bus   *bus.Bus
	crash context.CancelFunc
	ended chan error
}

// supervisor starts, kills and restarts one service, as a container runtime does.
// Each instance has its own connections to NATS and to its database.
type supervisor struct {
	name    string
	connect func(ctx context.Context, name string) (*bus.Bus, error)
	start   func(b *bus.Bus) (process, error)

	mu      sync.Mutex
	current *instance
	running sync.WaitGroup
	failed  func(error) // called when an instance ends by itself
}

// startService starts an instance, which runs until kill or stop.
func (s *supervisor) startService(ctx context.Context) error {
	b, err := s.connect(ctx, s.name)
	if err != nil {
		return fmt.Errorf("demo: %s: %w", s.name, err)
	}
	p, err := s.start(b)
	if err != nil {
		return errors.Join(fmt.Errorf("demo: %s: %w", s.name, err), b.Close())
	}
	running, crash := context.WithCancel(context.WithoutCancel(ctx))
	i := &instance{process: p, bus: b, crash: crash, ended: make(chan error, 1)}
	s.mu.Lock()
	s.current = i
	s.mu.Unlock()
	s.running.Go(func() {
		err := p.run(running)
		if err != nil && s.isCurrent(i) { // the connection of a killed one is closed before its context ends
			s.failed(fmt.Errorf("demo: %s: %w", s.name, err))
		}
		i.ended <- err
	})
	return nil
}

// kill ends the current instance as SIGKILL would. Its connections and its database
// are closed before its context ends, so it acknowledges, gives back and releases
// nothing. A transaction whose commit is under way may still be committed, as if
// the process had been killed a moment later. After kill has returned, none is.
func (s *supervisor) kill() {
	i := s.take()
	if i == nil {
		return
	}
	i.bus.Conn().Close()
	if i.cut != nil {
		i.cut()
	}
	i.crash()
	// Calls that wait for an answer on the connection end now.
	if err := i.bus.Close(); err != nil {
		s.failed(fmt.Errorf("demo: %s: %w", s.name, err))
	}
	<-i.ended //nolint:errcheck // the errors that a killed instance met
}

// stop stops the current instance in order and waits for all instances.
func (s *supervisor) stop() error {
	i := s.take()
	var err error
	if i != nil {
		i.crash()
		err = <-i.ended
		if closeErr := i.bus.Close(); err == nil {
			err = closeErr
		}
	}
	s.running.Wait()
	return err
}

// isCurrent says that i is the current instance: it was neither stopped nor killed.
func (s *supervisor) isCurrent(i *instance) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current == i
}

// take returns the current instance, after which there is none.
func (s *supervisor) take() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.current
	s.current = nil
	return i
}
