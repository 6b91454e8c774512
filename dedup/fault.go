package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// faultOfOthers says whether an error can mean that another owner has committed a step
// already. Within the stream's duplicate window the server then finds the message ids
// of what that owner emitted, before it looks at the page.
func faultOfOthers(err error) bool {
	return errors.Is(err, bus.ErrConflict) || errors.Is(err, bus.ErrDuplicate)
}

// faultOfOne says whether a single message can be the reason for an error.
func faultOfOne(err error) bool {
	return faultOfOthers(err) ||
		errors.Is(err, bus.ErrRefused) || errors.Is(err, bus.ErrTooLarge) || errors.Is(err, bus.ErrIncomplete)
}

// overtaken ends the steps whose page, record or document was written by others, and
// reports whether there was one. It asks for all of them at once. The replica that
// answers may lag behind: then the server refuses the next batch, too.
func (b *batch) overtaken(ctx context.Context, steps []*step) bool {
	bases := b.bases(steps)
	subjects := make([]string, 0, len(steps)+len(bases))
	for _, s := range steps {
		if s.mark != nil {
			subjects = append(subjects, s.mark.Subject)
		}
	}
	for subject := range bases {
		subjects = append(subjects, subject)
	}
	tenures := map[*Tenure]bool{}
	for _, s := range steps {
		if s.tenure != nil && !tenures[s.tenure] {
			tenures[s.tenure] = true
			subjects = append(subjects, s.tenure.subject)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answers, err := jetstreamext.GetLastMsgsFor(ctx, b.bus.JetStream(), b.marks.stream, subjects)
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
			b.end(s, fmt.Errorf("%w: %s", errConflict, s.mark.Subject))
		}
	}
	for t := range tenures {
		sequence := last[t.subject]
		if sequence < t.last && all {
			sequence = b.ask(ctx, t.subject, t.last)
		}
		// A newer page may be our own, and its answer got lost: reading it again tells.
		// None, or an older one, is that of a stream that was purged or made anew.
		if sequence > t.last || sequence < t.last && all {
			t.lose()
		}
	}
	moved := map[string]bool{}
	for subject, base := range bases {
		revision := last[subject]
		if revision < base && all {
			revision = b.ask(ctx, subject, base)
		}
		if moved[subject] = revision > base || revision < base && all; moved[subject] {
			b.moved(subject, revision)
		}
	}
	b.breakOff(steps, moved)
	return len(b.standing(steps)) < len(steps)
}

// ask returns the revision of a page or document, as the stream's leader has it. A replica
// has told an older revision than the steps follow, or none: either it lags behind,
// or the stream was made anew or has lost its end.
func (b *batch) ask(ctx context.Context, subject string, base uint64) uint64 {
	m, err := b.marks.latest(ctx, subject)
	if err != nil {
		return base // the server refuses the next batch if that is wrong
	}
	return sequenceOf(m)
}

// failAt ends the step that a message of the batch belongs to. It reports false for a
// page, which is of many steps: one of fewer is smaller.
func (b *batch) failAt(steps []*step, documents []string, misfit *bus.BatchError) bool {
	i := misfit.Index - len(documents)
	for _, s := range slices.Backward(steps) { // the last step that writes a document has sent it
		if i < 0 && s.changes(documents[misfit.Index]) {
			b.end(s, misfit.Err)
			return true
		}
	}
	for _, s := range steps {
		i -= len(s.out)
		if s.mark != nil {
			i--
		}
		if i < 0 {
			b.end(s, misfit.Err)
			return true
		}
	}
	return false
}

// dropIDs takes the message ids off what a step emits, and reports whether there
// were any. The stream has one of them already, from before this ledger was used.
// An event that is stored twice under one identity takes effect once all the same,
// while a step that cannot be stored would never end.
func dropIDs(s *step) (dropped bool) {
	for _, m := range s.out {
		if m.Header.Get(nats.MsgIdHdr) != "" {
			m.Header.Del(nats.MsgIdHdr)
			dropped = true
		}
	}
	return dropped
}

// misfit names the message because of which a batch is incomplete: one that is
// not the stream's, or larger than the stream allows. The server leaves such a
// message out without a word, and says only of the last one what is wrong with
// it. If there is none, the error stays what it is.
func (b *batch) misfit(ctx context.Context, msgs []*nats.Msg, incomplete error) error {
	if !errors.Is(incomplete, bus.ErrIncomplete) {
		return incomplete
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := b.marks.open(ctx)
	if err != nil {
		return incomplete
	}
	cfg := stream.CachedInfo().Config
	for i, m := range msgs {
		var why error
		switch size := bus.PayloadSize(m); {
		case cfg.MaxMsgSize >= 0 && size > int64(cfg.MaxMsgSize):
			why = fmt.Errorf("%w: %d bytes, the stream %s takes %d", bus.ErrTooLarge, size, cfg.Name, cfg.MaxMsgSize)
		case !slices.ContainsFunc(cfg.Subjects, func(filter string) bool { return event.SubjectCovers(filter, m.Subject) }):
			why = fmt.Errorf("%w: it is not a subject of stream %s", bus.ErrRefused, cfg.Name)
		default:
			continue
		}
		return &bus.BatchError{Index: i, Err: fmt.Errorf("dedup: publish %s: %w", m.Subject, why)}
	}
	return incomplete
}
