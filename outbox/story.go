package outbox

import (
	"encoding/json"
	"time"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// story is what has become of a row before it was published, as its column has it. The
// attempt before a replay tells of the replay: a row that is open and has one is a dead
// letter that is being replayed, as the macro {replayed} of [render] has it.
type story []chapter

// chapter is a failed attempt to publish a row, and the replay that came after it.
type chapter struct {
	event.Attempt
	Replayed *replayed `json:"replayed,omitempty"`
}

// replayed is a replay of a parked row.
type replayed struct {
	Number int       `json:"number"`
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"`
}

// readStory reads a column. What others have written there is no story: it begins anew.
func readStory(column string) (s story) {
	if json.Unmarshal([]byte(column), &s) != nil {
		return nil
	}
	return s
}

func (s story) column() (string, error) {
	list, err := json.Marshal(s)
	return string(list), err
}

// attempts are those that failed. A row that was parked by hand has none.
func (s story) attempts() (all []event.Attempt) {
	for _, c := range s {
		if c.Number > 0 {
			all = append(all, c.Attempt)
		}
	}
	return all
}

// lastReplay is the index of the attempt before the last replay, -1 without one.
func (s story) lastReplay() int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i].Replayed != nil {
			return i
		}
	}
	return -1
}

// replay adds a replay to the story of a row that was dead-lettered count times. A
// replay that was taken back keeps its number.
func (s story) replay(count int, by string) (story, int) {
	r := replayed{Number: max(count, 1), At: time.Now().UTC(), By: by}
	if i := s.lastReplay(); i >= 0 {
		r.Number = max(r.Number, s[i].Replayed.Number+1)
	}
	if len(s) == 0 {
		s = story{{}}
	}
	s[len(s)-1].Replayed = &r
	return s, r.Number
}

// replaying is the last replay, of a row that has this status now, and the story until then.
func (s story) replaying(now Status) (*dlq.Replaying, story) {
	r := dlq.Replaying{State: dlq.ReplayWaiting}
	last := s.lastReplay()
	if last >= 0 {
		r.Number, r.At, r.By = s[last].Replayed.Number, s[last].Replayed.At, s[last].Replayed.By
	}
	switch {
	case now == Processing:
		r.State = dlq.ReplayRunning
	case last+1 < len(s):
		r.State = dlq.ReplayRetrying
	}
	return &r, s[:last+1]
}

// takenBack reports whether a parked row is one because its replay was taken back: a
// relay says of the attempt with which it parks a row that it was the last one.
func (s story) takenBack() bool {
	last := len(s) - 1
	return last >= 0 && (s[last].Replayed != nil || s[last].Reason == "")
}
