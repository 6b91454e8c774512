package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// Selection says which letters to replay or discard, in exactly one of three
// ways; a zero Selection is refused, so that a forgotten filter is not "all".
type Selection struct {
	// IDs as in [Queue.Get].
	IDs []string
	// Filter chooses by content; the zero Filter chooses nothing here.
	Filter Filter
	// All chooses every letter.
	All bool
	// First has only so many of them chosen, of each store the oldest that are not being
	// replayed. Defaults to all. It does not count as a way.
	First int
}

func (s Selection) validate() error {
	ways := 0
	for _, used := range []bool{len(s.IDs) > 0, s.Filter != Filter{}, s.All} {
		if used {
			ways++
		}
	}
	switch ways {
	case 0:
		return fmt.Errorf("%w: nothing is selected: name ids, a filter or all", ErrSelection)
	case 1:
		return s.Filter.validate()
	default:
		return fmt.Errorf("%w: name either ids, or a filter, or all", ErrSelection)
	}
}

// Summary counts results.
type Summary struct {
	// Selected letters, also those that were not reached.
	Selected int            `json:"selected"`
	Counts   map[Status]int `json:"counts"`
}

// Reached is how many of the selected letters have a result.
func (s Summary) Reached() int {
	n := 0
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// Replay has the events of the selected letters handled again, in each store
// oldest first: a letter of the stream goes back to the consumer that failed and to no
// other, with its identity, fresh attempts and its history; a parked row is left to the
// relay again. A letter stays until the event has taken effect, a row until it is
// published, or has failed again and is one letter again. It stays as it is while no durable of its consumer would get the
// replay ([NoConsumer]).
//
// A letter that comes back while Replay runs is not read again. Replaying
// twice, also at once or after a crash or interruption, is harmless: a letter that is
// being replayed is in progress, the replay has the same message id until the letter
// says so, and the ledger knows what is done.
// report, which may be nil, is called for every letter in turn. The error says
// why Replay ended early, by ctx or by what would hit every letter
// ([bus.ErrUnavailable] and the like); the summary counts what was done.
//
// Not guaranteed: order with respect to other events of the same key.
func (q *Queue) Replay(ctx context.Context, s Selection, o ReplayOptions, report func(Result)) (Summary, error) {
	if o.To != "" {
		if err := o.To.Validate(); err != nil {
			return Summary{}, fmt.Errorf("%w: %w", ErrSelection, err)
		}
	}
	w := walk{limit: rate.NewLimiter(rate.Inf, 1), report: report, options: o, do: func(ctx context.Context, s Store, r Ref) (Result, error) {
		return s.Replay(ctx, r, o)
	}}
	if o.Rate > 0 {
		w.limit.SetLimit(rate.Limit(o.Rate))
	}
	sum, err := w.run(ctx, q, s)
	for _, sent := range []Status{Replayed, Pending, InProgress} {
		if n := sum.Counts[sent]; n > 0 && w.waits() {
			sum.Counts[Waiting] += n
			delete(sum.Counts, sent)
		}
	}
	return sum, err
}

// TakeBack ends the replays of the selected letters that their consumers have not
// begun, and of rows that no relay has now, and leaves the letters as they were. The ledger decides whether a worker was
// faster; with the ledger by partition an owner that has read the replay before may
// handle it yet. report, which may be nil, is called for every letter in turn; summary
// and error are as for [Queue.Replay].
func (q *Queue) TakeBack(ctx context.Context, s Selection, o TakeBackOptions, report func(Result)) (Summary, error) {
	w := walk{limit: rate.NewLimiter(rate.Inf, 1), report: report, do: func(ctx context.Context, s Store, r Ref) (Result, error) {
		return s.TakeBack(ctx, r, o)
	}}
	return w.run(ctx, q, s)
}

// Discard removes the selected letters for good, and closes their events in the
// ledger. An interrupted Discard can be run again. report, which may be nil, is
// called for every letter in turn; summary and error are as for [Queue.Replay].
func (q *Queue) Discard(ctx context.Context, s Selection, o DiscardOptions, report func(Result)) (Summary, error) {
	w := walk{limit: rate.NewLimiter(rate.Inf, 1), report: report, do: func(ctx context.Context, s Store, r Ref) (Result, error) {
		return s.Discard(ctx, r, o)
	}}
	return w.run(ctx, q, s)
}

// walk does one thing with every selected letter.
type walk struct {
	do     func(context.Context, Store, Ref) (Result, error)
	report func(Result)
	// limit is on letters that are sent or left to a relay; pause is what it asks
	// for before the next letter.
	limit *rate.Limiter
	pause time.Duration
	sum   Summary
	// options are those of a replay.
	options ReplayOptions
}

// waits reports whether to wait until what is replayed has ended.
func (w *walk) waits() bool {
	return (w.options.Wait || w.options.Canary) && !w.options.DryRun
}

// run reports the results, those of a store oldest first. What is stored after
// a store's turn has begun is not selected. It stops when ctx ends, never in the
// middle of a letter, or at an error that the next letter would meet too.
func (w *walk) run(ctx context.Context, q *Queue, s Selection) (Summary, error) {
	w.sum.Counts = map[Status]int{}
	if err := s.validate(); err != nil {
		return w.sum, err
	}
	for _, id := range s.IDs {
		if q.saysOutbox(id) {
			continue
		}
		if _, _, err := parseID(id); err != nil {
			return w.sum, err
		}
	}
	w.limit.Allow() // the second replay waits already
	parts, err := q.parts(ctx, s)
	if err != nil {
		return w.sum, err
	}
	for _, p := range parts {
		store, err := p.open()
		if err == nil {
			err = w.runIn(ctx, store, p.Selection)
		}
		if err != nil {
			return w.sum, err
		}
	}
	return w.sum, nil
}

// runIn walks over the selected letters of one store.
func (w *walk) runIn(ctx context.Context, store Store, s Selection) error {
	refs, err := refsOf(ctx, store, s)
	if err != nil {
		return err
	}
	w.sum.Selected += len(refs)
	for next := w.options.batches(); len(refs) > 0 && err == nil; {
		n := next(len(refs))
		err = w.batch(ctx, store, refs[:n])
		refs = refs[n:]
	}
	if err != nil {
		return fmt.Errorf("dlq: stopped after %d of %d: %w", w.sum.Reached(), w.sum.Selected, err)
	}
	return nil
}

// batch does one thing with some letters, and waits for what becomes of them.
func (w *walk) batch(ctx context.Context, store Store, refs []Ref) error {
	var sent []Result
	for _, r := range refs {
		if err := w.wait(ctx); err != nil {
			return err
		}
		result, err := w.do(ctx, store, r)
		if ctx.Err() != nil && errors.Is(result.Err, ctx.Err()) {
			return context.Cause(ctx) // before anything was done
		}
		result.Ends = err != nil
		w.add(result)
		if err != nil {
			return err
		}
		if result.Status == Replayed || result.Status == Pending || result.Status == InProgress && result.Replay > 0 {
			sent = append(sent, result)
		}
	}
	if !w.waits() {
		return nil
	}
	failed, all := w.sum.Counts[FailedAgain], len(sent)
	if err := w.await(ctx, store, sent); err != nil {
		return err
	}
	return w.options.tooMany(w.sum.Counts[FailedAgain]-failed, all)
}

// wait waits until the next letter may be replayed.
func (w *walk) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(w.pause):
	}
	return context.Cause(ctx)
}

func (w *walk) add(r Result) {
	if r.Status == Replayed || r.Status == Pending {
		w.pause = w.limit.Reserve().Delay()
	}
	w.count(r)
}

// count counts and reports a result.
func (w *walk) count(r Result) {
	w.sum.Counts[r.Status]++
	r.Selected = w.sum.Selected
	if r.Err != nil {
		r.Message = r.Err.Error()
	}
	if w.report != nil {
		w.report(r)
	}
}

// refsOf resolves a selection, about 150 bytes of memory a letter.
func refsOf(ctx context.Context, store Store, s Selection) (refs []Ref, err error) {
	if len(s.IDs) > 0 {
		for _, id := range s.IDs {
			refs = append(refs, Ref{ID: id})
		}
		return refs, nil
	}
	err = store.Scan(ctx, s.Filter, false, func(r Record) error {
		if s.First > 0 && r.Replay != nil {
			return nil
		}
		refs = append(refs, Ref{ID: r.ID, Sequence: r.Sequence, older: r.older})
		if len(refs) == s.First {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return refs, err
}

// errEnough ends a scan.
var errEnough = errors.New("dlq: enough")
