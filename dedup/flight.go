package dedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
)

// flight is a batch under way, to the end of each of its steps.
type flight struct{ *group }

const (
	// dropTries is how often a batch is sent that the server drops: while a
	// stream changes its leader, or other processes have too many open.
	dropTries = 4
	// dropDelay is how long to wait before the second time, at most; doubled each time.
	dropDelay = 20 * time.Millisecond
	// answerTimeout bounds the search for a batch whose answer got lost.
	answerTimeout = 5 * time.Second
)

// commit stores the steps in one batch. The server refuses a batch as a whole,
// so it finds those at fault, ends them with their own error, and commits the
// rest: the innocent are not failed, nor is anything of the guilty stored.
func (f *flight) commit(ctx context.Context, steps []*step) {
	steps = f.standing(steps)
	if len(steps) == 0 {
		return
	}
	documents, err := f.send(ctx, steps)
	var misfit *bus.BatchError
	switch {
	case err == nil:
	case errors.As(err, &misfit):
		f.failAt(steps, documents, misfit)
		f.commit(ctx, steps)
	case faultOfOthers(err) && f.overtaken(ctx, steps):
		f.commit(ctx, steps)
	case !faultOfOne(err):
		for _, s := range steps {
			f.end(s, err)
		}
	case len(steps) > 1:
		half := len(steps) / 2
		f.commit(ctx, steps[:half])
		f.commit(ctx, steps[half:])
	case errors.Is(err, bus.ErrDuplicate) && dropIDs(steps[0]):
		f.commit(ctx, steps)
	case errors.Is(err, bus.ErrConflict):
		f.end(steps[0], fmt.Errorf("%w: %w", errConflict, err))
	default:
		f.end(steps[0], err)
	}
}

// standing returns the steps that have not ended and do not build on a change
// that failed.
func (f *flight) standing(steps []*step) []*step {
	return slices.DeleteFunc(slices.Clone(steps), func(s *step) bool {
		if !s.ended && f.broken(s) {
			f.end(s, fmt.Errorf("%w: a change before it failed", ErrStale))
		}
		return s.ended
	})
}

func (f *flight) end(s *step, err error) {
	s.ended = true
	f.fail(s, err)
}

// faultOfOthers says whether an error can be because others have taken a step
// already. Within the stream's duplicate window the server then meets the
// message ids of what they emitted before it looks at the mark.
func faultOfOthers(err error) bool {
	return errors.Is(err, bus.ErrConflict) || errors.Is(err, bus.ErrDuplicate)
}

// faultOfOne says whether a single message can be the reason for an error.
func faultOfOne(err error) bool {
	return faultOfOthers(err) ||
		errors.Is(err, bus.ErrRefused) || errors.Is(err, bus.ErrTooLarge) || errors.Is(err, bus.ErrIncomplete)
}

// send stores the steps and ends them; or returns an error, with none ended.
// The messages are, in this order: the documents, and of each step what goes
// out and its mark. So the last one, which the answer is to, is this stream's
// for sure, wherever others belong.
func (f *flight) send(ctx context.Context, steps []*step) (documents []string, err error) {
	documents, msgs := f.documents(steps)
	msgs = slices.Grow(msgs, 2*len(steps))
	for _, s := range steps {
		msgs = append(msgs, s.out...)
		if s.mark != nil {
			msgs = append(msgs, s.mark)
		}
	}
	if len(msgs) == 0 { // steps that only wait, and now are behind what they waited for
		f.land(steps, documents, nil)
		return documents, nil
	}
	delay := dropDelay
	for range dropTries {
		var sequences []uint64
		if sequences, err = f.store(ctx, msgs); err == nil {
			f.land(steps, documents, sequences)
			f.reader.replaced(msgs, sequences) //nolint:contextcheck // a trace outlives the step that leaves it
			return documents, nil
		}
		if !errors.Is(err, bus.ErrIncomplete) && !errors.Is(err, bus.ErrBusy) {
			return documents, err
		}
		<-time.After(rand.N(delay)) //nolint:gosec // jitter
		delay *= 2
	}
	return documents, f.misfit(ctx, msgs, err)
}

func (f *flight) land(steps []*step, documents []string, sequences []uint64) {
	for _, s := range steps {
		s.ended = true
	}
	f.landed(steps, documents, sequences)
}

// store stores messages in one batch and returns their sequences.
func (f *flight) store(ctx context.Context, msgs []*nats.Msg) ([]uint64, error) {
	pending, err := f.bus.SendBatch(ctx, msgs)
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
	if sequence, found := f.find(ctx, msgs[len(msgs)-1]); found {
		return upTo(sequence, len(msgs)), nil
	}
	if first, n := f.begun(ctx, msgs); n > 0 {
		return f.finish(ctx, msgs, upTo(first+uint64(n)-1, n))
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

// find looks for a batch whose answer got lost: it is stored if its last
// message, a mark, is. If it is not found, it may still be on its way.
func (f *flight) find(ctx context.Context, mark *nats.Msg) (sequence uint64, found bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	m, err := f.reader.last(ctx, mark.Subject)
	if err != nil || m == nil || !bytes.Equal(m.Data, mark.Data) {
		return 0, false
	}
	return m.Sequence, true
}

// overtaken ends the steps whose mark or document was written by others, and
// reports whether there was one. It asks for all of them at once. What has
// not moved as far as a lagging replica knows is left to the server to judge.
func (f *flight) overtaken(ctx context.Context, steps []*step) bool {
	bases := f.bases(steps)
	subjects := make([]string, 0, len(steps)+len(bases))
	for _, s := range steps {
		if s.mark != nil {
			subjects = append(subjects, s.mark.Subject)
		}
	}
	for subject := range bases {
		subjects = append(subjects, subject)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answers, err := jetstreamext.GetLastMsgsFor(ctx, f.bus.JetStream(), f.reader.stream, subjects)
	if err != nil {
		return false
	}
	last, all := make(map[string]uint64, len(subjects)), true
	for m, err := range answers {
		if all = err == nil || errors.Is(err, jetstreamext.ErrNoMessages); err != nil {
			break // what is known is enough to go on
		}
		last[m.Subject] = m.Sequence
	}
	for _, s := range steps {
		if s.mark != nil && last[s.mark.Subject] > s.after {
			f.end(s, fmt.Errorf("%w: %s", errConflict, s.mark.Subject))
		}
	}
	moved := map[string]bool{}
	for subject, base := range bases {
		revision := last[subject]
		if revision < base && all {
			revision = f.ask(ctx, subject, base)
		}
		if moved[subject] = revision > base || revision < base && all; moved[subject] {
			f.learn(subject, sighting{revision: revision})
		}
	}
	f.breakOff(steps, moved)
	return len(f.standing(steps)) < len(steps)
}

// ask returns the revision of a document that is older than one which steps
// follow, or not there: either the copy of the stream that was asked lags behind,
// or the document has gone back, and that only the stream's leader knows.
func (f *flight) ask(ctx context.Context, subject string, base uint64) uint64 {
	m, err := f.reader.latest(ctx, subject)
	if err != nil {
		return base // left to the server to judge
	}
	return sequenceOf(m)
}

// failAt ends the step that a message of the batch belongs to.
func (f *flight) failAt(steps []*step, documents []string, misfit *bus.BatchError) {
	i := misfit.Index - len(documents)
	for _, s := range slices.Backward(steps) { // of a document the last change is sent
		if i < 0 && s.changes(documents[misfit.Index]) {
			f.end(s, misfit.Err)
			return
		}
	}
	for _, s := range steps {
		i -= len(s.out)
		if s.mark != nil {
			i--
		}
		if i < 0 {
			f.end(s, misfit.Err)
			return
		}
	}
}

// dropIDs takes the message ids off what a step emits, and reports whether
// there were any. The stream has one of them already, from before this ledger
// was used: stored twice under one identity, the event still takes effect
// once, while a step that cannot be stored would never end.
func dropIDs(s *step) (dropped bool) {
	for _, m := range s.out {
		if m.Header.Get(nats.MsgIdHdr) != "" {
			m.Header.Del(nats.MsgIdHdr)
			dropped = true
		}
	}
	return dropped
}
