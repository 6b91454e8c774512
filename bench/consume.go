package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
)

// consumeRole is the first argument of this program when it is to be a consumer in a
// process of its own.
const consumeRole = "consume"

// work is what such a process does.
type work struct {
	events   int // to handle; 0: as many as come until it is interrupted
	ledger   ledger.Kind
	handlers int
	wait     time.Duration // of each handler
}

func (w work) args() []string {
	return []string{strconv.Itoa(w.events), string(w.ledger), strconv.Itoa(w.handlers), w.wait.String()}
}

func parseWork(args []string) (w work, err error) {
	var errs [3]error
	w.ledger = ledger.Kind(args[1])
	w.events, errs[0] = strconv.Atoi(args[0])
	w.handlers, errs[1] = strconv.Atoi(args[2])
	w.wait, errs[2] = time.ParseDuration(args[3])
	return w, errors.Join(errs[:]...)
}

// progress is what the consumer's process prints, a line each.
type progress struct {
	Handled int `json:"handled"`
	// PeakKB is the largest resident memory there was; in the last line only.
	PeakKB int64 `json:"peak_kb,omitempty"`
	// HeapBytes is by how much the heap has grown since before the consumer was made;
	// in the last line only.
	HeapBytes int64 `json:"heap_bytes,omitempty"`
}

const progressEvery = 5 * time.Millisecond

// consume handles events of the stage with the given prefix until there were enough,
// and tells how much memory this process needs.
func consume(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) != 6 {
		return fmt.Errorf("%w: %s URL PREFIX EVENTS LEDGER HANDLERS WAIT", errUsage, consumeRole)
	}
	w, err := parseWork(args[2:])
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: args[0], Names: event.Names{Prefix: args[1]}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	before := heap()
	c, err := hopbench.NewConsumer(b, w.ledger, w.handlers, w.wait)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	lines := json.NewEncoder(out)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for handled := 0; w.events == 0 || handled < w.events; {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return err
			}
			return fmt.Errorf("consumer ended early: %w", err)
		case <-tick.C:
			handled = int(c.Stats().Handled) //nolint:gosec // far from the largest int
			if err := lines.Encode(progress{Handled: handled}); err != nil {
				return err
			}
		}
	}
	peak, err := peakKB()
	grown := heap() - before
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	return lines.Encode(progress{Handled: int(c.Stats().Handled), PeakKB: peak, HeapBytes: grown}) //nolint:gosec // likewise
}

// heap is how many bytes of the heap are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far from the largest int
}

// peakKB is the largest resident memory that this process has had (Linux).
func peakKB() (int64, error) { return peakOf("self") }

// peakOf is that of a process with this id.
func peakOf(process string) (int64, error) {
	status, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return 0, fmt.Errorf("peak memory is read on Linux only: %w", err)
	}
	_, after, found := bytes.Cut(status, []byte("VmHWM:"))
	if !found {
		return 0, errors.New("no VmHWM in /proc/self/status")
	}
	return strconv.ParseInt(string(bytes.Fields(after)[0]), 10, 64)
}
