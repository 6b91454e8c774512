package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/event"
)

// Status is where a consumer stands, as the server tells anybody. Its parts were
// read one after another, so they need not fit together while it works.
type Status struct {
	Consumer event.Consumer `json:"consumer"`
	// Lag is how many events are stored for it and have not ended.
	Lag uint64 `json:"lag"`
	// Oldest is since when the oldest of these is stored; zero if there are none.
	Oldest time.Time `json:"oldest,omitzero"`
	// Workers is how many processes run it, paused or not: they follow its pauses. If none
	// is seen to (there is no bucket, or it may not be looked at), it is how many wait for
	// events: one that is held up, or has no room for more, is not seen then.
	Workers int `json:"workers"`
	// Unattended says that nobody runs it: no process is seen, nothing hides one, and
	// for as long as an event may be held nothing was delivered.
	Unattended bool `json:"unattended"`
	// InFlight is how many of these a process has.
	InFlight int `json:"in_flight"`
	// Retries is how many have failed, or were given back, and come again.
	Retries int `json:"retries"`
	// Deferred is how many of the retries are put off as timers.
	Deferred int `json:"deferred"`
	// Paused says what holds the consumer up, and until when; empty if nothing does.
	Paused   []PausedStatus  `json:"paused,omitempty"`
	Durables []DurableStatus `json:"durables"`
	// Members and Partitions are those of a consumer with the partition ledger.
	Members    []Member          `json:"members,omitempty"`
	Partitions []PartitionStatus `json:"partitions,omitempty"`
}

// Member is one process of a consumer that shares its partitions.
type Member = members.Member

// DurableStatus is what the event stream keeps of one durable of a consumer.
type DurableStatus struct {
	Name     string   `json:"name"`
	Subjects []string `json:"subjects"`
	// Pending are not delivered yet, AckPending delivered and not acknowledged;
	// Redelivered are those of AckPending that were delivered more than once.
	Pending     uint64 `json:"pending"`
	AckPending  int    `json:"ack_pending"`
	Redelivered int    `json:"redelivered"`
	// Delivered is the sequence up to which it has delivered everything once.
	Delivered uint64 `json:"-"`
	// Pulls is how many requests wait for events: none means that nobody reads.
	Pulls int `json:"pulls"`
	// PausedUntil is until when the server delivers nothing; zero if it delivers.
	PausedUntil time.Time `json:"paused_until,omitzero"`

	delivered uint64 // the sequence up to which it has delivered everything once
}

// PausedStatus is one reason for which a consumer begins nothing.
type PausedStatus struct {
	// Reason is "operator", or "breaker <name>" for one that is not closed.
	Reason string `json:"reason"`
	// Until is the end of an operator's pause, of an open breaker when it may be probed,
	// and of a half-open one when its prober counts as dead. By the server's clock. Zero
	// for a breaker that stays open until somebody closes it.
	Until time.Time `json:"until,omitzero"`
	By    string    `json:"by"`
	Why   string    `json:"why,omitempty"`
}

// PartitionStatus is where one partition stands, as its last page tells.
type PartitionStatus struct {
	Partition int `json:"partition"`
	// Owner is the member that wrote the page, "" if there is no page.
	Owner string `json:"owner"`
	// Owned says that the owner is there and has not said farewell.
	Owned bool `json:"owned"`
	// Floor is the sequence up to which everything of the partition has ended.
	Floor uint64 `json:"floor"`
	// Lag is how many events are stored above the floor: some may have ended.
	Lag uint64 `json:"lag"`
	// Oldest is since when the oldest of these is stored; zero if there are none.
	Oldest  time.Time `json:"oldest,omitzero"`
	Retries int       `json:"retries"`
	// Page says what the last page is: "fence" (an owner has begun), "page" or
	// "farewell" (one has ended); "" if there is none.
	Page string    `json:"page"`
	At   time.Time `json:"at"` // of the last page
}

// List tells where all consumers stand of which the event stream knows, by name.
// Errors match [bus.ErrNoStream], [bus.ErrDenied], [bus.ErrUnavailable] or [bus.ErrClosed].
func List(ctx context.Context, b *bus.Bus) ([]Status, error) {
	return statuses(ctx, b, "")
}

// Look tells where one consumer stands. Errors match [event.ErrInvalidConsumer],
// [ErrNoDurable] if the event stream does not know it, or are those of [List].
func Look(ctx context.Context, b *bus.Bus, c event.Consumer) (Status, error) {
	if err := c.Validate(); err != nil {
		return Status{}, err
	}
	all, err := statuses(ctx, b, c)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%w %s on stream %s", ErrNoDurable, c, b.Names().EventsStream())
	}
	if err != nil {
		return Status{}, err
	}
	return all[0], nil
}

// statuses tells where consumers stand, all of them for "".
func statuses(ctx context.Context, b *bus.Bus, only event.Consumer) ([]Status, error) {
	s, err := survey(ctx, b, only)
	if err != nil {
		return nil, fmt.Errorf("consumer: status: %w", err)
	}
	known := map[event.Consumer]bool{}
	for c := range s.durables {
		known[c] = only == "" || c == only
	}
	for c := range s.paged {
		known[c] = true
	}
	all := []Status{}
	for _, c := range slices.Sorted(maps.Keys(known)) {
		if !known[c] {
			continue
		}
		status, err := s.status(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("consumer: status of %s: %w", c, err)
		}
		all = append(all, status)
	}
	return all, nil
}

// status puts together where one consumer stands.
func (s *surveyed) status(ctx context.Context, c event.Consumer) (Status, error) {
	status := Status{Consumer: c, Deferred: s.deferred[c], Durables: []DurableStatus{}}
	var err error
	if status.Paused, err = s.paused(ctx, c); err != nil {
		return Status{}, err
	}
	for _, d := range s.durables[c] {
		has := DurableStatus{
			Name: d.Name, Subjects: filtersOf(d.Config), Pending: d.NumPending,
			AckPending: d.NumAckPending, Redelivered: d.NumRedelivered, Pulls: d.NumWaiting,
			delivered: d.Delivered.Stream,
		}
		if d.Paused && d.Config.PauseUntil != nil {
			has.PausedUntil = d.Config.PauseUntil.UTC()
		}
		status.Durables = append(status.Durables, has)
	}
	slices.SortFunc(status.Durables, func(a, b DurableStatus) int { return strings.Compare(a.Name, b.Name) })
	status.Workers = s.processes[c]
	if !s.paged[c] {
		status.ofDurables()
		status.Unattended = status.Workers == 0 && (s.unseen == nil || len(status.Paused) == 0) && s.quiet(c)
		status.Oldest, err = s.oldestOfDurables(ctx, c)
		return status, err
	}
	if status.Members, err = members.List(ctx, s.bus, c); err != nil && !errors.Is(err, bus.ErrNoStream) {
		return Status{}, err
	}
	if status.Partitions, err = s.partitions(ctx, c, status.Members); err != nil {
		return Status{}, err
	}
	status.ofPartitions()
	for _, p := range status.Partitions {
		status.Oldest = earlier(status.Oldest, p.Oldest)
	}
	return status, nil
}

// ofDurables sums up what the durables tell.
func (s *Status) ofDurables() {
	s.Retries = s.Deferred
	pulls := 0
	for _, d := range s.Durables {
		s.Lag += d.Pending + uint64(d.AckPending) //nolint:gosec // a count
		s.InFlight += d.AckPending
		s.Retries += d.Redelivered
		pulls = max(pulls, d.Pulls) // a process pulls from each of them
	}
	s.Workers = cmp.Or(s.Workers, pulls)
}

// ofPartitions sums up what the partitions tell. What is in flight the durables tell
// alone: each is one member's, and the server keeps those of the dead for a while.
func (s *Status) ofPartitions() {
	s.Workers = cmp.Or(s.Workers, len(s.Members))
	s.Unattended = s.Workers == 0
	for _, p := range s.Partitions {
		s.Lag += p.Lag
		s.Retries += p.Retries
	}
	for _, d := range s.Durables {
		if slices.ContainsFunc(s.Members, func(m Member) bool { return isDurableOf(d.Name, s.Consumer, m.ID) }) {
			s.InFlight += d.AckPending
		}
	}
}
