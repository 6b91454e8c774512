package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Replaying is the replay of a letter that has not come to an end. The letter stays
// until it has: its consumer removes it when the event has taken effect, and replaces
// it when the event has failed again. A parked row stays until a relay has published it.
type Replaying struct {
	// Number counts the replays of the event, from 1.
	Number int `json:"number"`
	// At is when it was sent, by the sender's clock, and By who sent it.
	At time.Time `json:"at"`
	By string    `json:"by,omitempty"`
	// State is how far it has come, one of Replay….
	State string `json:"state"`
	// Workers is how many processes run the consumer; nil if that could not be found out.
	Workers *int `json:"workers,omitempty"`

	// sequence is where it is stored in the event stream.
	sequence uint64
}

// How far a replay has come.
const (
	ReplayWaiting  = "waiting"  // for its consumer, or for a relay
	ReplayRunning  = "running"  // a worker has it, or a relay
	ReplayRetrying = "retrying" // it has failed, and has attempts left
	ReplayLost     = "lost"     // the event stream does not hold it any more: replay again
	ReplayHandled  = "handled"  // it has taken effect, and the letter is a leftover
)

// replayedHeader is how a letter carries it.
type replayedHeader struct {
	Number   int       `json:"number"`
	At       time.Time `json:"at"`
	By       string    `json:"by,omitempty"`
	Sequence uint64    `json:"sequence,omitempty"`
}

func (r Replaying) header() string {
	return asciiJSON(replayedHeader{Number: r.Number, At: r.At, By: r.By, Sequence: r.sequence})
}

// replayingOf reads it from a letter, nil if the letter is not being replayed. How far
// it has come the ledger knows.
func replayingOf(h nats.Header) *Replaying {
	var r replayedHeader
	if err := json.Unmarshal([]byte(first(h, headerReplayed)), &r); err != nil || r.Number < 1 {
		return nil
	}
	return &Replaying{Number: r.Number, At: r.At, By: r.By, State: ReplayWaiting, sequence: r.Sequence}
}

// over reports whether the ledger knows that a letter is not being replayed any more,
// although it says so: its replay was taken back, or has failed and left no letter.
func (r *Replaying) over(m Mark) bool {
	return m.State == StateDiscarded || m.State == StateParked && m.Replay >= r.Number
}

// stateOf says how far a replay has come. first is the first sequence that the event
// stream holds.
func (r *Replaying) stateOf(m Mark, known bool, first uint64) string {
	switch {
	case known && m.State == StateDone:
		return ReplayHandled
	case known && m.State == StateClaimed:
		return ReplayRunning
	case known && m.State == StateWaiting && m.Failures > 0:
		return ReplayRetrying
	case r.sequence > 0 && r.sequence < first:
		return ReplayLost
	default:
		return ReplayWaiting
	}
}

// Progress is a sentence about the replay of a letter, "" if it is not being replayed.
func (e Entry) Progress() string {
	r := e.Replay
	if r == nil {
		return ""
	}
	who := string(e.Consumer)
	if e.Consumer == ConsumerOutbox {
		who = "a relay"
	}
	return fmt.Sprintf("%s; sent %s as replay %d", r.describe(who), r.At.UTC().Format(time.RFC3339), r.Number)
}

// describe is "replayed, waiting for payment, 2 workers of it are there".
func (r *Replaying) describe(consumer string) string {
	there := ""
	if r.Workers != nil {
		switch *r.Workers {
		case 0:
			there = ", none of its workers is there"
		case 1:
			there = ", 1 worker of it is there"
		default:
			there = fmt.Sprintf(", %d workers of it are there", *r.Workers)
		}
	}
	switch r.State {
	case ReplayRunning:
		return "replayed, " + consumer + " has it now"
	case ReplayRetrying:
		return "replayed, failed, and waiting for its next attempt by " + consumer + there
	case ReplayLost:
		return "replayed, but the event stream has dropped the replay before " + consumer + " took it: replay it again"
	case ReplayHandled:
		return "replayed and handled; its letter is left over, and the next replay removes it"
	default:
		return "replayed, waiting for " + consumer + there
	}
}

// follower finds out how far the replays of letters have come. It asks once for what it
// needs for all of them.
type follower struct {
	stream  *Stream
	workers map[event.Consumer]*int
	first   uint64 // sequence of the event stream, 0 before it is asked
}

func (s *Stream) follower() *follower {
	return &follower{stream: s, workers: map[event.Consumer]*int{}}
}

// look finds out how far the replay of a letter has come, and who is there to handle it.
// From a letter that is not being replayed any more it takes that off.
func (f *follower) look(ctx context.Context, e *Entry) error {
	if e.Replay == nil {
		return nil
	}
	m, known, err := f.stream.mark(ctx, e.Consumer, e.EventKey)
	if err != nil {
		return err
	}
	if known && e.Replay.over(m) {
		e.Replay = nil
		return nil
	}
	if f.first == 0 {
		if f.first, err = f.stream.firstEvent(ctx); err != nil {
			return err
		}
	}
	e.Replay.State = e.Replay.stateOf(m, known, f.first)
	workers, asked := f.workers[e.Consumer]
	if !asked {
		workers = f.stream.workers(ctx, e)
		f.workers[e.Consumer] = workers
	}
	e.Replay.Workers = workers
	return nil
}

// workers is how many processes would handle a replay, nil if nobody can tell: to see a
// letter must not take more grants than to read the letter.
func (s *Stream) workers(ctx context.Context, e *Entry) *int {
	if e.Consumer.Validate() != nil {
		return nil
	}
	n, err := s.Workers(ctx, e.Consumer)
	if err != nil {
		return nil
	}
	return &n
}

// firstEvent is the first sequence that the event stream holds, 1 without a stream.
func (s *Stream) firstEvent(ctx context.Context) (uint64, error) {
	stream, err := s.bus.Stream(ctx, s.names.EventsStream())
	if errors.Is(err, bus.ErrNoStream) {
		return 1, nil
	}
	if err != nil {
		return 0, s.wrap("look for replays", err)
	}
	return max(1, stream.CachedInfo().State.FirstSeq), nil
}
