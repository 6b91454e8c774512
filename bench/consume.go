package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
)

// consumeRole is the first argument of this program when it is to be the
// consumer whose memory is measured.
const consumeRole = "consume"

// progress is what the consumer's process prints, a line each.
type progress struct {
	Handled int `json:"handled"`
	// PeakKB is the largest resident memory there was; in the last line only.
	PeakKB int64 `json:"peak_kb,omitempty"`
}

const progressEvery = 5 * time.Millisecond

// consume handles events of the stage with the given prefix until there were
// enough, and tells the peak of this process's memory.
func consume(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) != 3 {
		return fmt.Errorf("%w: %s URL PREFIX EVENTS", errUsage, consumeRole)
	}
	enough, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("%w: events: %w", errUsage, err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: args[0], Names: event.Names{Prefix: args[1]}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	c, err := hopbench.NewConsumer(b, ledger.KV, hopbench.DefaultConcurrency)
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
	for handled := 0; handled < enough; {
		select {
		case err := <-ended:
			return fmt.Errorf("consumer ended early: %w", err)
		case <-tick.C:
			handled = int(c.Stats().Handled) //nolint:gosec // far from the largest int
			if err := lines.Encode(progress{Handled: handled}); err != nil {
				return err
			}
		}
	}
	peak, err := peakKB()
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	return lines.Encode(progress{Handled: int(c.Stats().Handled), PeakKB: peak}) //nolint:gosec // likewise
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
