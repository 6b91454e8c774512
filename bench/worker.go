package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/farandole/farandole/internal/hopbench"
)

// worker is a consumer in a process of its own: this program in another role.
type worker struct {
	process *exec.Cmd
	lines   *bufio.Scanner
}

// startWorker starts one on a stage of the server with this address.
func (b *bench) startWorker(ctx context.Context, url string, s *hopbench.Stage, w work) (*worker, error) {
	return b.startChild(ctx, consumeRole, url, s, w.args())
}

// startChild starts this program in a role.
func (b *bench) startChild(ctx context.Context, role, url string, s *hopbench.Stage, args []string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(ctx, self, append([]string{role, url, s.Bus.Names().Prefix}, args...)...) //nolint:gosec // this program
	child.Stderr = b.log
	pipe, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	return &worker{child, bufio.NewScanner(pipe)}, nil
}

// follow calls each with what the process tells, until it has done its work.
func (w *worker) follow(each func(progress) error) (last progress, err error) {
	for err == nil && w.lines.Scan() {
		if err = json.Unmarshal(w.lines.Bytes(), &last); err == nil {
			err = each(last)
		}
	}
	err = errors.Join(err, w.lines.Err())
	if err != nil {
		w.process.Process.Kill() //nolint:errcheck // Wait tells
	}
	if err := errors.Join(err, w.process.Wait()); err != nil {
		return last, fmt.Errorf("consumer's process: %w", err)
	}
	if last.PeakKB == 0 {
		return last, errors.New("consumer's process: ended without a result")
	}
	return last, nil
}

// drain reads what the process tells to nobody's use.
func (w *worker) drain() {
	for w.lines.Scan() {
	}
}

// end sends the process a signal and waits until it has ended.
func (w *worker) end(signal syscall.Signal) error {
	if err := w.process.Process.Signal(signal); err != nil {
		return err
	}
	w.drain()
	err := w.process.Wait()
	if exit := (&exec.ExitError{}); signal == syscall.SIGKILL && errors.As(err, &exit) {
		return nil
	}
	return err
}
