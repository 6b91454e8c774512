package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/farandole/farandole/bus"
)

// process is a service as its main function sees it.
type process struct {
	// run works until ctx ends.
	run func(ctx context.Context) error
	// cut closes what the process listens on and writes to, abruptly. Nil for nothing.
	cut func()
}

// instance is one run of a service: what lives and dies with its process.
type instance struct {
	process
	bus   *bus.Bus
	crash context.CancelFunc
	ended chan error
}

// actor is a service that can be killed and comes back, like a container with
// a restart policy. Each life has its own connections to NATS and its database.
type actor struct {
	name    string
	connect func(ctx context.Context, name string) (*bus.Bus, error)
	start   func(b *bus.Bus) (process, error)

	mu      sync.Mutex
	current *instance
	lives   sync.WaitGroup
	failed  func(error) // called when a life ends by itself
}

// rise begins a life. It ends with crash or stop.
func (a *actor) rise(ctx context.Context) error {
	b, err := a.connect(ctx, a.name)
	if err != nil {
		return fmt.Errorf("demo: %s: %w", a.name, err)
	}
	p, err := a.start(b)
	if err != nil {
		return errors.Join(fmt.Errorf("demo: %s: %w", a.name, err), b.Close())
	}
	life, crash := context.WithCancel(context.WithoutCancel(ctx))
	i := &instance{process: p, bus: b, crash: crash, ended: make(chan error, 1)}
	a.mu.Lock()
	a.current = i
	a.mu.Unlock()
	a.lives.Go(func() {
		err := p.run(life)
		if err != nil && a.is(i) { // a killed one may see its connection closed before its context is
			a.failed(fmt.Errorf("demo: %s: %w", a.name, err))
		}
		i.ended <- err
	})
	return nil
}

// kill ends the current life without any goodbye: its sockets and its database
// are closed before anything hears of it, so nothing that it holds is settled or
// given back. A transaction that was about to commit then may do so, as if death
// had come a moment later; after kill has returned nothing commits any more.
func (a *actor) kill() {
	i := a.take()
	if i == nil {
		return
	}
	i.bus.Conn().Close()
	if i.cut != nil {
		i.cut()
	}
	i.crash()
	// What still waits on the connection need not wait any more.
	if err := i.bus.Close(); err != nil {
		a.failed(fmt.Errorf("demo: %s: %w", a.name, err))
	}
	<-i.ended //nolint:errcheck // what its death looked like to itself
}

// stop ends the current life in order, and waits for all lives.
func (a *actor) stop() error {
	i := a.take()
	var err error
	if i != nil {
		i.crash()
		err = <-i.ended
		if closeErr := i.bus.Close(); err == nil {
			err = closeErr
		}
	}
	a.lives.Wait()
	return err
}

// is says that i is the current life, which nobody has ended.
func (a *actor) is(i *instance) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current == i
}

func (a *actor) take() *instance {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.current
	a.current = nil
	return i
}
