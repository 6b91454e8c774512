package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// oldest is since when the first event is stored that has not ended. A user who may
// not read it gets none.
func (s *surveyed) oldest(ctx context.Context, behind map[uint64][]string) (oldest time.Time, err error) {
	for at, filters := range behind {
		for _, filter := range filters {
			m, err := s.bus.Next(ctx, s.bus.Names().EventsStream(), filter, at+1)
			if errors.Is(err, bus.ErrDenied) {
				return time.Time{}, nil
			}
			if err != nil {
				return time.Time{}, err
			}
			if m != nil {
				oldest = earlier(oldest, m.Time.UTC())
			}
		}
	}
	return oldest, nil
}

// oldestOfDurables is the same for a consumer without partitions. Up to a durable's
// ack floor all has ended, and the first event after it has not.
func (s *surveyed) oldestOfDurables(ctx context.Context, c event.Consumer) (oldest time.Time, err error) {
	for _, d := range s.durables[c] {
		if d.NumPending == 0 && d.NumAckPending == 0 {
			continue
		}
		at, err := s.oldest(ctx, map[uint64][]string{d.AckFloor.Stream: filtersOf(d.Config)})
		if err != nil {
			return time.Time{}, err
		}
		oldest = earlier(oldest, at)
	}
	return oldest, nil
}

// earlier is the earlier of two times; a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// quiet reports whether the durables of a consumer have delivered nothing for longer
// than a process may hold an event without a word, by the server's clock.
func (s *surveyed) quiet(c event.Consumer) bool {
	for _, d := range s.durables[c] {
		last := d.Created
		if d.Delivered.Last != nil {
			last = *d.Delivered.Last
		}
		if d.AckFloor.Last != nil && d.AckFloor.Last.After(last) {
			last = *d.AckFloor.Last
		}
		if d.NumAckPending > 0 && d.TimeStamp.Sub(last) < d.Config.AckWait {
			return false
		}
	}
	return true
}
