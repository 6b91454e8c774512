package dedup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/backoff"
)

// batch is the batch of a group that is under way.
type batch struct{ *group }

const (
	// dropTries is how often a batch is sent that the server drops: while a
	// stream changes its leader, or other processes have too many batches open.
	dropTries = 4
	// dropDelay and maxDropDelay bound the wait before it is sent again.
	dropDelay, maxDropDelay = 20 * time.Millisecond, time.Second
	// answerTimeout bounds the search for a batch whose answer got lost.
	answerTimeout = 5 * time.Second
)

// commit stores the steps in one batch. The server refuses a batch as a whole. So
// commit finds the steps at fault, ends them with their own error, and commits the
// others without them.
func (b *batch) commit(ctx context.Context, steps []*step) {
	steps = b.standing(steps)
	if len(steps) == 0 {
		return
	}
	documents, err := b.send(ctx, steps)
	var misfit *bus.BatchError
	switch {
	case err == nil:
	case errors.As(err, &misfit) && b.failAt(steps, documents, misfit):
		b.commit(ctx, steps)
	case faultOfOthers(err) && b.overtaken(ctx, steps):
		b.commit(ctx, steps)
	case !faultOfOne(err):
		for _, s := range steps {
			b.end(s, err)
		}
	case len(steps) > 1:
		half := len(steps) / 2
		b.commit(ctx, steps[:half])
		b.commit(ctx, steps[half:])
	case errors.Is(err, bus.ErrDuplicate) && dropIDs(steps[0]):
		b.commit(ctx, steps)
	case errors.Is(err, bus.ErrConflict):
		b.end(steps[0], fmt.Errorf("%w: %w", errConflict, err))
	default:
		b.end(steps[0], err)
	}
}

// standing returns the steps that have not ended. It ends those that build on a
// step that failed.
func (b *batch) standing(steps []*step) []*step {
	return slices.DeleteFunc(slices.Clone(steps), func(s *step) bool {
		switch {
		case s.ended:
		case s.tenure != nil && s.tenure.isLost():
			b.end(s, fmt.Errorf("%w: partition %d is another owner's", ErrLeaseLost, s.tenure.partition))
		case b.broken(s):
			b.end(s, fmt.Errorf("%w: a change before it failed", ErrStale))
		}
		return s.ended
	})
}

func (b *batch) end(s *step, err error) {
	s.ended = true
	b.fail(s, err)
}

// send stores the steps and ends them, or returns an error and ends none. The
// messages are, in this order: the documents, of each step what goes out and its
// record, and the pages. So the last message, which the server answers, is one of this
// stream, even if others are not, and a page never stands for what is not there.
func (b *batch) send(ctx context.Context, steps []*step) (documents []string, err error) {
	documents, msgs := b.documents(steps)
	msgs = slices.Grow(msgs, 2*len(steps))
	for _, s := range steps {
		msgs = append(msgs, s.out...)
		if s.mark != nil {
			msgs = append(msgs, s.mark)
		}
	}
	pages := turns(steps)
	for _, p := range pages {
		msgs = append(msgs, p.page)
	}
	if len(msgs) == 0 { // these steps only waited for the steps before them
		b.finishSteps(steps, documents, nil, nil)
		return documents, nil
	}
	for try := range dropTries {
		var sequences []uint64
		if sequences, err = b.store(ctx, msgs); err == nil {
			b.finishSteps(steps, documents, pages, sequences)
			b.marks.replaced(msgs, sequences) //nolint:contextcheck // a trace outlives the step that leaves it
			return documents, nil
		}
		if !errors.Is(err, bus.ErrIncomplete) && !errors.Is(err, bus.ErrBusy) {
			break
		}
		<-time.After(backoff.FullJitter(dropDelay, maxDropDelay, try, rand.Float64())) //nolint:gosec // jitter
	}
	for _, p := range pages {
		p.tenure.turnBack(p.steps)
	}
	return documents, b.misfit(ctx, msgs, err)
}

// turns are the pages of a batch, one for each partition of which the steps are.
func turns(steps []*step) (pages []turn) {
	at := map[*Tenure]int{}
	for _, s := range steps {
		if s.tenure == nil {
			continue
		}
		i, ok := at[s.tenure]
		if !ok {
			i = len(pages)
			at[s.tenure] = i
			pages = append(pages, turn{tenure: s.tenure})
		}
		pages[i].steps = append(pages[i].steps, s)
	}
	for i, p := range pages {
		pages[i].page = p.tenure.turn(p.steps)
	}
	return pages
}

func (b *batch) finishSteps(steps []*step, documents []string, pages []turn, sequences []uint64) {
	for _, s := range steps {
		s.ended = true
	}
	b.stored(steps, documents, pages, sequences)
}

// store stores messages in one batch and returns their sequences.
func (b *batch) store(ctx context.Context, msgs []*nats.Msg) ([]uint64, error) {
	pending, err := b.bus.SendBatch(ctx, msgs)
	if err != nil {
		return nil, err
	}
	receipt, err := pending.Wait(ctx)
	switch {
	case err == nil:
		return upTo(receipt.Sequence, len(msgs)), nil
	case !errors.Is(err, bus.ErrUnavailable):
		return nil, err
	}
	if sequence, found := b.find(ctx, msgs[len(msgs)-1]); found {
		return upTo(sequence, len(msgs)), nil
	}
	if first, n := b.begun(ctx, msgs); n > 0 {
		return b.finish(ctx, msgs, upTo(first+uint64(n)-1, n))
	}
	return nil, err
}

// upTo returns the n sequences that end with last.
func upTo(last uint64, n int) []uint64 {
	sequences := make([]uint64, n)
	for i := range slices.Backward(sequences) {
		sequences[i] = last
		last--
	}
	return sequences
}

// find looks for a batch whose answer got lost. It is stored if its last message, a
// page, is. One that is not found may still be on its way.
func (b *batch) find(ctx context.Context, last *nats.Msg) (sequence uint64, found bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m, err := b.marks.last(ctx, last.Subject)
	if err != nil || m == nil ||
		m.Header.Get(headerOwner) != last.Header.Get(headerOwner) || m.Header.Get(headerSerial) != last.Header.Get(headerSerial) {
		return 0, false
	}
	return m.Sequence, true
}
