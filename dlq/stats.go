package dlq

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/farandole/farandole/event"
)

// maxGroups bounds the memory of [Queue.Stats].
const maxGroups = 1000

// Stats says what is in the queue.
type Stats struct {
	Total    int       `json:"total"`
	Oldest   time.Time `json:"oldest,omitzero"` // when stored
	Newest   time.Time `json:"newest,omitzero"`
	LastHour int       `json:"last_hour"` // stored within it
	LastDay  int       `json:"last_day"`
	// Consumers counts letters by consumer and reason.
	Consumers map[event.Consumer]map[string]int `json:"consumers"`
	// Groups are kinds of failure, the most frequent first.
	Groups []Group `json:"groups"`
	// Ungrouped counts letters of further kinds, after the first 1,000 kinds.
	Ungrouped int `json:"ungrouped,omitempty"`
	// Replayed counts those of Total that are being replayed, and Replays says by
	// consumer how far they have come.
	Replayed int       `json:"replayed"`
	Replays  []Replays `json:"replays,omitempty"`
	// Stranded are events that wait for consumers which do not exist (any more), and
	// have no letter.
	Stranded []Stranded `json:"stranded,omitempty"`
}

// Replays counts the letters of one consumer that are being replayed, by the state of
// their replay.
type Replays struct {
	Consumer event.Consumer `json:"consumer"`
	Waiting  int            `json:"waiting"`
	Running  int            `json:"running"`
	Retrying int            `json:"retrying"`
	Lost     int            `json:"lost"`
	Handled  int            `json:"handled"`
	// Oldest is when the first of them was sent.
	Oldest time.Time `json:"oldest,omitzero"`
	// Workers is how many processes run the consumer, nil if unknown.
	Workers *int `json:"workers,omitempty"`
}

// add counts one replay.
func (r *Replays) add(one Replaying) {
	switch one.State {
	case ReplayRunning:
		r.Running++
	case ReplayRetrying:
		r.Retrying++
	case ReplayLost:
		r.Lost++
	case ReplayHandled:
		r.Handled++
	default:
		r.Waiting++
	}
	r.Workers = one.Workers
	if r.Oldest.IsZero() || one.At.Before(r.Oldest) {
		r.Oldest = one.At
	}
}

// Group is one kind of failure: letters with one fingerprint.
type Group struct {
	Fingerprint string `json:"fingerprint"`
	Class       string `json:"class,omitempty"`
	// Error is the text with placeholders, as in "order <id> not found".
	Error string `json:"error,omitempty"`
	Type  string `json:"type,omitempty"`
	// Example is the ID of the newest letter.
	Example   string                 `json:"example"`
	Count     int                    `json:"count"`
	Consumers map[event.Consumer]int `json:"consumers"`
	Oldest    time.Time              `json:"oldest"`
	Newest    time.Time              `json:"newest"`
	LastHour  int                    `json:"last_hour"`
	LastDay   int                    `json:"last_day"`
}

// Stats groups all letters by kind of failure, and tells what is stranded. It
// reads their headers and keeps the groups.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Consumers: map[event.Consumer]map[string]int{}}
	groups := map[string]*Group{}
	replayed := map[string]bool{}
	now := time.Now()
	err := q.each(ctx, Filter{}, func(store Store) error {
		return store.Scan(ctx, Filter{}, false, func(r Record) error {
			s.add(r.Entry, groups, now)
			if r.Replay != nil {
				replayed[r.ID] = true
			}
			return nil
		})
	})
	var stream *Stream
	if err == nil {
		stream, err = q.stream()
	}
	if err == nil {
		s.Stranded, err = stream.stranded(ctx, replayed)
	}
	s.Groups = make([]Group, 0, len(groups))
	for _, g := range groups {
		s.Groups = append(s.Groups, *g)
	}
	slices.SortFunc(s.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Newest.Compare(a.Newest), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return s, err
}

// add counts one entry.
func (s *Stats) add(e Entry, groups map[string]*Group, now time.Time) {
	if s.Total++; s.Total == 1 || e.Stored.Before(s.Oldest) {
		s.Oldest = e.Stored
	}
	if e.Stored.After(s.Newest) {
		s.Newest = e.Stored
	}
	hour, day := within(e.Stored, now, time.Hour), within(e.Stored, now, 24*time.Hour)
	s.LastHour += hour
	s.LastDay += day
	if s.Consumers[e.Consumer] == nil {
		s.Consumers[e.Consumer] = map[string]int{}
	}
	s.Consumers[e.Consumer][e.Reason]++
	if e.Replay != nil {
		s.Replayed++
		s.replaysOf(e.Consumer).add(*e.Replay)
	}

	g := groups[e.Fingerprint]
	if g == nil {
		if len(groups) == maxGroups {
			s.Ungrouped++
			return
		}
		g = &Group{
			Fingerprint: e.Fingerprint, Class: e.Class, Error: normalise(e.Error), Type: e.Type,
			Consumers: map[event.Consumer]int{}, Oldest: e.Stored,
		}
		groups[e.Fingerprint] = g
	}
	if e.Stored.Before(g.Oldest) {
		g.Oldest = e.Stored
	}
	if !e.Stored.Before(g.Newest) {
		g.Example, g.Newest = e.ID, e.Stored
	}
	g.Count++
	g.Consumers[e.Consumer]++
	g.LastHour += hour
	g.LastDay += day
}

// replaysOf returns the counts of a consumer, in the order of names.
func (s *Stats) replaysOf(c event.Consumer) *Replays {
	i, found := slices.BinarySearchFunc(s.Replays, c, func(r Replays, c event.Consumer) int { return cmp.Compare(r.Consumer, c) })
	if !found {
		s.Replays = slices.Insert(s.Replays, i, Replays{Consumer: c})
	}
	return &s.Replays[i]
}

func within(t, now time.Time, d time.Duration) int {
	if now.Sub(t) <= d {
		return 1
	}
	return 0
}
