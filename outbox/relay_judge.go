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
	// errNowhere is the fault of a row whose subject no stream stores, while the
	// event stream is there.
	errNowhere = errors.New("outbox: no stream stores rows of this subject")
	// errSilence is the fault of a row that nobody answers, while rows are answered
	// that were sent after it.
	errSilence = errors.New("outbox: rows sent after it were answered, and it was not")
)

// judge tells an outage from the fault of one row, where the error of the row
// alone does not.
type judge struct {
	bus *bus.Bus

	mu       sync.Mutex
	answered time.Time // when the latest row was sent that was answered
	asked    time.Time // when it was last asked whether the event stream is there
	there    bool
}

// blame adds to the error of a row, nil if it is stored, that the row is at fault.
func (j *judge) blame(ctx context.Context, f flight, err error) error {
	switch {
	case unanswered(err):
		if j.later(f.sent) {
			return fmt.Errorf("%w: %w", errSilence, err)
		}
	case errors.Is(err, bus.ErrNoStream):
		// Timers have one subject: without their stream there is none for all.
		if strings.HasPrefix(f.row.subject, j.bus.Names().Root("events.")) && j.nowhere(ctx, f.row.subject) {
			return fmt.Errorf("%w: %w", errNowhere, err)
		}
	case err == nil, classOf(err) != "":
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.answered.Before(f.sent) {
			j.answered = f.sent
		}
	}
	return err
}

// unanswered reports whether nobody has said anything to a publish for as long
// as it was waited.
func unanswered(err error) bool {
	return errors.Is(err, jetstream.ErrAsyncPublishTimeout) || errors.Is(err, bus.ErrUnavailable) && errors.Is(err, context.DeadlineExceeded)
}

// later reports whether a row was answered that was sent after this time.
func (j *judge) later(than time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.answered.After(than)
}

// hearsay is how long it is believed that the event stream is there, or is not.
const hearsay = time.Second

// nowhere reports whether no stream stores a subject although the event stream
// is there. While that is missing no row has a stream, and none is at fault.
func (j *judge) nowhere(ctx context.Context, subject string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if time.Since(j.asked) >= hearsay {
		_, err := j.bus.Stream(ctx, j.bus.Names().EventsStream())
		j.asked, j.there = time.Now(), err == nil
	}
	if !j.there {
		return false
	}
	// Asked second, or the event stream could have come in between.
	err := j.bus.Ask(ctx, "STREAM.NAMES", func(ctx context.Context) error {
		_, err := j.bus.JetStream().StreamNameBySubject(ctx, subject)
		return err
	})
	if err != nil && !errors.Is(err, bus.ErrNoStream) {
		j.there = false // it does not answer: the next row need not ask
	}
	return errors.Is(err, bus.ErrNoStream)
}
