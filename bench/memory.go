package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// fewWaiting is what many waiting events are compared with.
const fewWaiting = 1_000

// memoryFigures are the peaks of a consumer's resident memory, over the same
// number of handled events.
type memoryFigures struct {
	Handled int     `json:"handled"`
	Many    int     `json:"many_waiting"`
	Few     int     `json:"few_waiting"`
	ManyKB  []int64 `json:"many_peak_kb"`
	FewKB   []int64 `json:"few_peak_kb"`
	// ServerKB is the peak of the server's resident memory, with so many subjects.
	Subjects uint64 `json:"server_subjects"`
	ServerKB int64  `json:"server_peak_kb"`
}

// memory runs a consumer in a process of its own while a number of events
// waits, which is kept up as it handles them.
func (b *bench) memory(ctx context.Context) error {
	if _, err := peakKB(); err != nil {
		b.say("memory: not measured: %v", err)
		return nil // the targets say so again
	}
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	f := &memoryFigures{Handled: b.handled, Many: b.waiting, Few: fewWaiting}
	// Many events take long to publish: once, for the consumers of all repetitions.
	for _, of := range []struct {
		waiting int
		peaks   *[]int64
	}{{f.Few, &f.FewKB}, {f.Many, &f.ManyKB}} {
		if *of.peaks, err = b.peaks(ctx, connect, of.waiting, f); err != nil {
			return err
		}
	}
	b.results.Memory = f
	if err := b.title("memory of a consumer's process (KV ledger, %d handlers), peak over %s handled events, median of %d", hopbench.DefaultConcurrency, terminal.Number(f.Handled), b.reps); err != nil {
		return err
	}
	table := terminal.NewTable(">waiting", ">resident", ">ratio")
	few, many := medianKB(f.FewKB), medianKB(f.ManyKB)
	table.Row(terminal.Number(f.Few), terminal.Size(int(few)<<10), "1.00")
	table.Row(terminal.Number(f.Many), terminal.Size(int(many)<<10), ratio(many, few))
	if _, err = table.WriteTo(b.out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(b.out, "the server's peak with %s subjects: %s\n", terminal.Number(int(f.Subjects)), terminal.Size(int(f.ServerKB)<<10)) //nolint:gosec // small
	return err
}

// server notes the server's memory, and how many subjects its streams have.
func (f *memoryFigures) server(ctx context.Context, b *bench, s *hopbench.Stage) (err error) {
	f.Subjects = 0
	list := s.Bus.JetStream().ListStreams(ctx)
	for info := range list.Info() {
		f.Subjects += info.State.NumSubjects
	}
	if err := list.Err(); err != nil {
		return err
	}
	f.ServerKB, err = peakOf(strconv.Itoa(b.alone.processes[0].Process.Pid))
	return err
}

func medianKB(values []int64) float64 {
	var all []float64
	for _, v := range values {
		all = append(all, float64(v))
	}
	return median(all)
}

// peaks makes a stage with events waiting and has one process a repetition
// handle some of them.
func (b *bench) peaks(ctx context.Context, connect bus.Config, waiting int, f *memoryFigures) (peaks []int64, err error) {
	s, err := hopbench.Open(ctx, connect, hopbench.Prefix(), 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	b.say("memory: publishing %s events", terminal.Number(waiting))
	if err := s.Publish(ctx, 0, waiting); err != nil {
		return nil, err
	}
	published, handled := waiting, 0
	for rep := range b.reps {
		r, err := b.process(ctx, s, waiting, &published, handled)
		if err != nil {
			return nil, err
		}
		handled += r.Handled
		peaks = append(peaks, r.PeakKB)
		b.say("memory %d/%d: %s waiting: %s", rep+1, b.reps, terminal.Number(waiting), terminal.Size(int(r.PeakKB)<<10))
	}
	if err := f.server(ctx, b, s); err != nil {
		return nil, err
	}
	return peaks, verifyCount(ctx, s, handled)
}

// verifyCount checks that as many events have been handled as the processes
// say, and none twice. Which ones is up to where each of them stopped.
func verifyCount(ctx context.Context, s *hopbench.Stage, handled int) error {
	stored, err := s.Outgoing(ctx)
	if err != nil {
		return err
	}
	if len(stored) != handled {
		return fmt.Errorf("%w: %d events handled, %d outgoing ones stored", hopbench.ErrUnverified, handled, len(stored))
	}
	for subject, count := range stored {
		if count != 1 {
			return fmt.Errorf("%w: %s is stored %d times", hopbench.ErrUnverified, subject, count)
		}
	}
	return nil
}

// process runs a consumer's process and publishes as it handles. handled is
// what others have handled before.
func (b *bench) process(ctx context.Context, s *hopbench.Stage, waiting int, published *int, handled int) (progress, error) {
	w, err := b.startWorker(ctx, b.alone.url, s, work{events: b.handled, ledger: ledger.KV, handlers: hopbench.DefaultConcurrency})
	if err != nil {
		return progress{}, err
	}
	return w.follow(func(p progress) error {
		short := handled + p.Handled + waiting - *published
		if short <= 0 || p.PeakKB != 0 {
			return nil
		}
		*published += short
		return s.Publish(ctx, *published-short, short)
	})
}
