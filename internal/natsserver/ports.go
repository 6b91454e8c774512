package natsserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Ports are taken from below those that systems give to outgoing connections:
// one of these could take the port of a server that is being restarted.
const (
	lowestPort  = 20000
	highestPort = 32000
	portTries   = 100
)

const (
	// startTries is how often servers are started on free ports that others
	// are faster to take.
	startTries = 5
	// portPatience is how long a given port may be taken: a server that had it
	// before has ended, but not all who hold it.
	portPatience = time.Second
)

// errPort is returned when a port cannot be listened on.
var errPort = errors.New("port")

// onGivenPorts starts what listens on ports that it was told.
func onGivenPorts[T any](start func() (T, error)) (started T, err error) {
	for deadline := time.Now().Add(portPatience); ; <-time.After(readyStep) {
		if started, err = start(); !errors.Is(err, errPort) || time.Now().After(deadline) {
			return started, err
		}
	}
}

// onFreePorts starts what listens on n ports of host.
func onFreePorts[T any](host string, n int, start func(ports []int) (T, error)) (started T, err error) {
	for range startTries {
		var ports []int
		if ports, err = FreePorts(host, n); err != nil {
			return started, fmt.Errorf("%w: %w", ErrStart, err)
		}
		if started, err = start(ports); !errors.Is(err, errPort) {
			break
		}
	}
	return started, err
}

// FreePorts finds n ports of host on which nothing listens now. Another process
// could take one before the server does, which then fails to start. An error
// says why the last port tried is not free.
func FreePorts(host string, n int) ([]int, error) {
	var ports []int
	var last error
	for range portTries {
		port := lowestPort + rand.N(highestPort-lowestPort) //nolint:gosec // spread, not secrecy
		if slices.Contains(ports, port) {
			continue
		}
		if err := checkFree(host, port); err != nil {
			last = err
			continue
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on %s: %w", n, host, last)
}

// checkFree tries to listen. A child that this process starts meanwhile would get
// a copy of what listens, and keep the port until it runs its own program: on a
// busy machine until after the server has tried to listen itself. So no child is
// started during the trial, nor is there a trial while one is being started.
func checkFree(host string, port int) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%w %d is not free: %w", errPort, port, err)
	}
	return l.Close()
}
