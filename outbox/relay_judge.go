package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

var (
	// errNotStored is the fault of a row whose subject no stream stores, while the
	// event stream is there.
	errNotStored = errors.New("outbox: no stream stores rows of this subject")
	// errUnanswered is the fault of a row that nobody answers, while rows are answered
	// that were sent before it and after it. After it alone is not enough: an outage
	// that ends while rows are on their way leaves those without an answer.
	errUnanswered = errors.New("outbox: rows sent before and after it were answered, and it was not")
)

// judge tells an outage from the fault of one row where the error alone does not.
type judge struct {
	bus *bus.Bus

	mu       sync.Mutex
	silent   time.Time // when the latest row was sent that was not answered, nor any row after it
	since    time.Time // when the first row after that was sent that was answered; zero if none was
	answered time.Time // when the row was sent that is the latest of those answered
	asked    time.Time // when the server was last asked for the event stream
	there    bool      // the event stream, then
}

// blame returns the error of a row that was sent, nil if a stream has stored it. If the
// row is at fault it adds errUnanswered or errNotStored.
func (j *judge) blame(ctx context.Context, s sentRow, err error) error {
	switch {
	case unanswered(err):
		if j.passedOver(s.at) {
			return fmt.Errorf("%w: %w", errUnanswered, err)
		}
	case errors.Is(err, bus.ErrNoStream):
		// Timers have one subject: without their stream there is none for all.
		if strings.HasPrefix(s.row.subject, j.bus.Names().Root("events.")) && j.noStreamFor(ctx, s.row.subject) {
			return fmt.Errorf("%w: %w", errNotStored, err)
		}
	case err == nil, classOf(err) != "":
		j.heard(s.at)
	}
	return err
}

// unanswered reports whether the wait for an answer to a publish has run out.
func unanswered(err error) bool {
	return errors.Is(err, jetstream.ErrAsyncPublishTimeout) || errors.Is(err, bus.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded)
}

// heard notes that a row was answered that was sent at this time.
func (j *judge) heard(sent time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if sent.After(j.answered) {
		j.answered = sent
	}
	if sent.After(j.silent) && (j.since.IsZero() || sent.Before(j.since)) {
		j.since = sent
	}
}

// passedOver reports, of a row that was sent at this time and not answered, whether
// rows were answered that were sent before and after it.
func (j *judge) passedOver(sent time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.answered.After(sent) { // as in an outage
		j.silent, j.since = sent, time.Time{}
		return false
	}
	return !j.since.IsZero() && j.since.Before(sent)
}

// streamKnownFor is how long the server's answer counts whether there is an event stream.
const streamKnownFor = time.Second

// noStreamFor reports whether no stream stores a subject although the event stream is
// there. While the event stream is missing no row has a stream, and none is at fault.
func (j *judge) noStreamFor(ctx context.Context, subject string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if time.Since(j.asked) >= streamKnownFor {
		_, err := j.bus.Stream(ctx, j.bus.Names().EventsStream())
		j.asked, j.there = time.Now(), err == nil
	}
	if !j.there {
		return false
	}
	// This is asked second: the other way round the event stream could come in between.
	err := j.bus.Ask(ctx, "STREAM.NAMES", func(ctx context.Context) error {
		_, err := j.bus.JetStream().StreamNameBySubject(ctx, subject)
		return err
	})
	if err != nil && !errors.Is(err, bus.ErrNoStream) {
		j.there = false // it does not answer: the next row need not ask
	}
	return errors.Is(err, bus.ErrNoStream)
}
