package natsserver

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// Whoever is faster than a server to take a port does not keep it from
// starting, be it a port for clients or for the other servers of a cluster.
func TestServersGoOnToOtherPorts(t *testing.T) {
	t.Parallel()
	taken := start(t, Config{}).Port()
	for name, lose := range map[string]func(ports []int){
		"for clients": func(ports []int) { ports[1] = taken },
		"for servers": func(ports []int) { ports[0] = taken },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{StoreDir: t.TempDir()}.withDefaults()
			var tries [][]int
			servers, err := onFreePorts(cfg.Host, 2, func(ports []int) ([]*Server, error) {
				if tries = append(tries, ports); len(tries) == 1 {
					lose(ports)
				}
				return cfg.members(ports)
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := stopAll(servers); err != nil {
				t.Error(err)
			}
			if len(tries) != 2 {
				t.Errorf("started on %v, want a second try", tries)
			}
		})
	}
}

func TestServersGiveUpWhenAllPortsAreTaken(t *testing.T) {
	t.Parallel()
	taken, tries := start(t, Config{}), 0
	_, err := onFreePorts(taken.cfg.Host, 1, func([]int) (*Server, error) {
		tries++
		return launch(taken.Config())
	})
	if !errors.Is(err, ErrStart) || tries != startTries {
		t.Errorf("%v after %d tries, want ErrStart after %d", err, tries, startTries)
	}
}

// Whoever holds a port that is about to become free does not keep a server from
// starting again.
func TestServersWaitForTheirPort(t *testing.T) {
	t.Parallel()
	holder, tries := start(t, Config{}), 0
	cfg := holder.Config()
	cfg.StoreDir = t.TempDir()
	s, err := onGivenPorts(func() (*Server, error) {
		if tries++; tries == 2 {
			if err := holder.Stop(); err != nil {
				t.Error(err)
			}
		}
		return launch(cfg)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if tries < 2 {
		t.Error("a port is shared")
	}
}

// While a child is being started nobody tries to listen: the child would get
// what listens as well.
func TestPortsAreNotTriedWhileAChildIsStarted(t *testing.T) {
	t.Parallel()
	tried := make(chan error)
	syscall.ForkLock.Lock()
	go func() {
		_, err := FreePorts("127.0.0.1", 1)
		tried <- err
	}()
	select {
	case err := <-tried:
		syscall.ForkLock.Unlock()
		t.Errorf("tried: %v", err)
	case <-time.After(100 * time.Millisecond):
		syscall.ForkLock.Unlock()
		if err := <-tried; err != nil {
			t.Error(err)
		}
	}
}
