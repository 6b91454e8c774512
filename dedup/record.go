package dedup

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
)

// state is where an event stands on its consumer. The empty state is an event
// without a mark.
type state string

const (
	stateClaimed   state = "claimed"   // a worker runs it, until its lease ends
	stateWaiting   state = "waiting"   // given back, for the next attempt
	stateDone      state = "done"      // it has taken effect
	stateParked    state = "parked"    // it lies in the dead letters
	stateDiscarded state = "discarded" // its dead letter was discarded
	stateKnown     state = "known"     // no event's: what the consumer has been given, see [Ledger.Remember]
)

// record is how a mark is stored: JSON, so that `nats kv get` shows it. It holds
// no time: when it was written is the server's knowledge, and leases are judged
// by the server's clock alone.
type record struct {
	State state `json:"state"`
	// By names the claim that wrote the record; it tells a worker its own
	// write, whose acknowledgement got lost, from another's.
	By string `json:"by,omitempty"`
	// LeaseMS is the length of the owner's lease in milliseconds, while claimed.
	LeaseMS  int64           `json:"lease_ms,omitempty"`
	Replay   int             `json:"replay,omitempty"`
	Failures int             `json:"failures,omitempty"`
	Crashes  int             `json:"crashes,omitempty"`
	First    *event.Attempt  `json:"first_failure,omitempty"`
	Attempts []event.Attempt `json:"attempts,omitempty"`
	// Subjects are those of a consumer, in the state known.
	Subjects []string `json:"subjects,omitempty"`
}

// keepAttempts is how many attempts a mark keeps: the first and the latest ones.
const keepAttempts = 10

func (r record) lease() time.Duration { return time.Duration(r.LeaseMS) * time.Millisecond }

// claimed returns the record of a claim that follows r. A replay newer than r
// starts afresh; only the first failure of all is remembered.
func (r record) claimed(by string, req Request) record {
	if req.Replay > r.Replay {
		r = record{Replay: req.Replay, First: r.First}
	}
	r.State, r.By = stateClaimed, by
	r.LeaseMS = int64((req.Lease + time.Millisecond - 1) / time.Millisecond) // never shorter than asked for
	return r
}

// ended returns the record after a claim that ended in s.
func (r record) ended(s state) record {
	r.State, r.LeaseMS = s, 0
	return r
}

// final says that the event will not run again by itself.
func (r record) final() bool {
	return r.State == stateDone || r.State == stateParked || r.State == stateDiscarded
}

// kept says that a record does not end with the retention.
func (r record) kept() bool { return r.State == stateParked || r.State == stateKnown }

// blank says that a record tells nobody anything once its claim is over: a
// claim, and an event given back with nothing learned.
func (r record) blank() bool {
	return r.State == stateClaimed || r.State == stateWaiting && r.Failures == 0
}

// failed returns r with a failed attempt in its history; nil changes nothing.
func (r record) failed(failure *event.Attempt) record {
	if failure == nil {
		return r
	}
	a := *failure
	a.Error = text.Cut(a.Error, event.MaxErrorText)
	if r.First == nil {
		r.First = &a
	}
	r.Failures++
	r.Attempts = append(slices.Clip(r.Attempts), a) // a copy: claims share the old one
	if len(r.Attempts) > keepAttempts {
		r.Attempts = slices.Delete(r.Attempts, 1, 2)
	}
	return r
}

// done drops the attempts: what took effect needs no more than their count and
// the first failure, for people.
func (r record) done() record {
	r.Attempts = nil
	return r.ended(stateDone)
}

func (r record) mark(at time.Time) Mark {
	return Mark{
		State: string(r.State), Replay: r.Replay, Failures: r.Failures, Crashes: r.Crashes,
		Attempts: r.Attempts, First: r.First, At: at,
	}
}

// encode writes a record without history, the common one, by hand and into b: a By
// is base32 and needs no escaping.
func (r record) encode(b []byte) ([]byte, error) {
	if r.Replay|r.Failures|r.Crashes != 0 || r.First != nil || len(r.Attempts)+len(r.Subjects) > 0 {
		return json.Marshal(r)
	}
	b = append(slices.Grow(b, 80), `{"state":"`...)
	b = append(b, r.State...)
	if r.By != "" {
		b = append(b, `","by":"`...)
		b = append(b, r.By...)
	}
	b = append(b, '"')
	if r.LeaseMS != 0 {
		b = append(b, `,"lease_ms":`...)
		b = strconv.AppendInt(b, r.LeaseMS, 10)
	}
	return append(b, '}'), nil
}

// decodeRecord returns an error matching [ErrBadMark] for what encode has not written.
func decodeRecord(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("%w: %w", ErrBadMark, err)
	}
	switch r.State {
	case stateClaimed, stateWaiting, stateDone, stateParked, stateDiscarded, stateKnown:
		return r, nil
	}
	return record{}, fmt.Errorf("%w: state %q", ErrBadMark, r.State)
}
