package dedup_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// shop is a consumer with partitions, seen by the test.
type shop struct {
	*testing.T
	bus    *bus.Bus
	ledger *dedup.Partitions
}

func newShop(t *testing.T) shop {
	t.Helper()
	b := bustest.NewBus(t)
	l, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return shop{t, b, l}
}

func (s shop) take(owner string) *dedup.Tenure {
	s.Helper()
	return s.takeOf(7, owner)
}

func (s shop) takeOf(partition int, owner string) *dedup.Tenure {
	s.Helper()
	taken, err := s.ledger.Take(s.Context(), "payment", []int{partition}, dedup.Ownership{Owner: owner, Window: 16, Types: []event.Type{"order.placed.v1"}})
	if err != nil {
		s.Fatal(err)
	}
	return taken[partition]
}

func keyOf(n int) event.EventKey { return event.NewEventKey("/order", fmt.Sprintf("o-%d", n)) }

// claim claims event n, whose message has the sequence seq.
func (s shop) claim(t *dedup.Tenure, n int, seq uint64) (*dedup.Claim, error) {
	s.Helper()
	t.Enter(seq)
	return s.ledger.Claim(s.Context(), dedup.Request{Consumer: "payment", Key: keyOf(n), Tenure: t, Sequence: seq, Lease: time.Second})
}

// want claims event n and checks the answer.
func (s shop) want(t *dedup.Tenure, n int, seq uint64, status dedup.Status) *dedup.Claim {
	s.Helper()
	c, err := s.claim(t, n, seq)
	if err != nil {
		s.Fatal(err)
	}
	if c.Status != status {
		s.Fatalf("event %d is %v, want %v", n, c.Status, status)
	}
	return c
}

func (s shop) emit(n int) []*nats.Msg {
	return []*nats.Msg{{Subject: s.bus.Names().EventSubject("payment.captured.v1", event.Key(fmt.Sprintf("o-%d", n))), Data: []byte("{}"), Header: nats.Header{}}}
}

func (s shop) complete(c *dedup.Claim, n int) {
	s.Helper()
	if err := s.ledger.Complete(s.Context(), c, s.emit(n)); err != nil {
		s.Fatal(err)
	}
}

func TestPartitions_next_owner_knows_what_has_ended(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := s.take("a")
	for n := range 5 {
		s.complete(s.want(first, n, uint64(10+n), dedup.Claimed), n)
	}
	if got := first.Floor(); got != 14 {
		t.Errorf("floor %d, want 14", got)
	}
	second := s.take("b")
	if got := second.Floor(); got != 14 {
		t.Errorf("floor of the next owner %d, want 14", got)
	}
	for n := range 5 {
		s.want(second, n, uint64(20+n), dedup.Done)
	}
	s.want(second, 5, 30, dedup.Claimed)
}

// Partitions that are taken together are read in one go: each gets its own, and a page
// that cannot be read holds up its own partition alone.
func TestPartitions_taken_together_know_their_own(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := map[int]*dedup.Tenure{}
	for _, partition := range []int{3, 7, 12} {
		first[partition] = s.takeOf(partition, "a")
		s.complete(s.want(first[partition], partition, uint64(10+partition), dedup.Claimed), partition)
	}
	running := s.want(first[7], 70, 27, dedup.Claimed)
	if err := s.ledger.Release(t.Context(), running, &event.Attempt{Number: 1, Error: "declined"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.bus.Conn().Request(s.bus.Names().Root("ledger.payment.12.page"), []byte("scrawl"), time.Minute); err != nil {
		t.Fatal(err)
	}
	second, err := s.ledger.Take(t.Context(), "payment", []int{3, 7, 12, 20}, dedup.Ownership{Owner: "b", Window: 16, Types: []event.Type{"order.placed.v1"}})
	if !errors.Is(err, dedup.ErrBadMark) || !strings.Contains(err.Error(), "partition 12") {
		t.Errorf("error %v, want one of partition 12", err)
	}
	if len(second) != 3 || second[12] != nil {
		t.Fatalf("taken are %v", second)
	}
	for _, partition := range []int{3, 7} {
		if floor := second[partition].Floor(); floor != uint64(10+partition) {
			t.Errorf("floor of %d is %d", partition, floor)
		}
		s.want(second[partition], partition, uint64(30+partition), dedup.Done)
	}
	s.want(second[3], 7, 34, dedup.Claimed) // what another one remembers
	if c := s.want(second[7], 70, 38, dedup.Claimed); len(c.Attempts) != 1 {
		t.Errorf("attempts %+v", c.Attempts)
	}
	s.want(second[20], 3, 40, dedup.Claimed)
}

func TestPartitions_fenced_owner_stores_nothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	zombie := s.take("a")
	c := s.want(zombie, 1, 10, dedup.Claimed)
	second := s.take("b")
	if err := s.ledger.Complete(t.Context(), c, s.emit(1)); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatalf("the zombie's step: %v, want ErrLeaseLost", err)
	}
	select {
	case <-zombie.Lost():
	default:
		t.Error("the zombie was not told that its partition is lost")
	}
	if _, err := s.claim(zombie, 2, 11); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Errorf("the zombie's next claim: %v, want ErrLeaseLost", err)
	}
	s.complete(s.want(second, 1, 10, dedup.Claimed), 1)
}

func TestPartitions_failed_attempts_and_parked_events_outlive_their_owner(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	first := s.take("a")
	failed := s.want(first, 1, 10, dedup.Claimed)
	if err := s.ledger.Release(t.Context(), failed, &event.Attempt{Number: 1, Error: "declined"}, nil); err != nil {
		t.Fatal(err)
	}
	parked := s.want(first, 2, 11, dedup.Claimed)
	letter := &nats.Msg{Subject: s.bus.Names().Root("dlq.payment.x"), Data: []byte("{}"), Header: nats.Header{}}
	if err := s.ledger.Park(t.Context(), parked, &event.Attempt{Number: 1, Error: "bad", Reason: event.ReasonPermanent}, letter); err != nil {
		t.Fatal(err)
	}
	if got := first.Floor(); got != 0 {
		t.Errorf("floor %d, want 0: event 1 is still open", got)
	}
	if err := first.Farewell(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := s.take("b")
	if c := s.want(second, 1, 10, dedup.Claimed); c.Failures != 1 || len(c.Attempts) != 1 || c.Crashes != 0 {
		t.Errorf("event 1 after %d failures and %d crashes, want 1 and 0", c.Failures, c.Crashes)
	}
	s.want(second, 2, 20, dedup.Parked)
	replay, err := s.ledger.Claim(t.Context(), dedup.Request{Consumer: "payment", Key: keyOf(2), Replay: 1, Tenure: second, Sequence: 21, Lease: time.Second})
	if err != nil || replay.Status != dedup.Claimed {
		t.Fatalf("replay: %v %v, want claimed", replay, err)
	}
	s.complete(replay, 2)
	s.want(second, 2, 22, dedup.Done)
	if m, known, err := s.ledger.Mark(t.Context(), "payment", keyOf(2)); err != nil || !known || m.State != "done" {
		t.Errorf("mark %v %v %v, want done", m, known, err)
	}
}

func TestPartitions_event_that_kills_its_owner_is_counted_and_others_are_not(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.want(s.take("a"), 1, 10, dedup.Claimed) // and dies: nobody knows of what
	second := s.take("b")
	if !second.Careful() {
		t.Fatal("not careful after an owner that has died")
	}
	if c := s.want(second, 1, 10, dedup.Claimed); c.Crashes != 0 {
		t.Errorf("%d crashes, want 0: the first one cannot be told", c.Crashes)
	}
	s.complete(s.want(second, 2, 11, dedup.Claimed), 2)
	for crashes := 1; crashes < 4; crashes++ {
		next := s.take(fmt.Sprint("c", crashes))
		if c := s.want(next, 1, 10, dedup.Claimed); c.Crashes != crashes {
			t.Fatalf("%d crashes, want %d", c.Crashes, crashes)
		}
		if c := s.want(next, 3, 12, dedup.Claimed); c.Crashes != 0 {
			t.Fatalf("an event that did not run has %d crashes", c.Crashes)
		} else if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	last := s.take("d")
	c := s.want(last, 1, 10, dedup.Claimed)
	for range 3 { // a suspect that has to wait for another one comes again and again
		if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil {
			t.Fatal(err)
		}
		if c = s.want(last, 1, 10, dedup.Claimed); c.Crashes != 4 {
			t.Fatalf("%d crashes after a wait, want 4", c.Crashes)
		}
	}
	if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := last.Farewell(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fresh := s.take("e"); fresh.Careful() {
		t.Error("careful after a farewell")
	}
}

func TestPartitions_floor_stops_at_what_is_open(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tenure := s.take("a")
	c1, c2, c3 := s.want(tenure, 1, 10, dedup.Claimed), s.want(tenure, 2, 20, dedup.Claimed), s.want(tenure, 3, 30, dedup.Claimed)
	s.complete(c2, 2)
	s.complete(c3, 3)
	if got := tenure.Floor(); got != 0 {
		t.Errorf("floor %d while the first event is open, want 0", got)
	}
	next := s.take("b")
	for _, seq := range []uint64{10, 20, 30} {
		if !next.Enter(seq) {
			t.Errorf("sequence %d is taken for ended", seq)
		}
	}
	s.want(next, 2, 20, dedup.Done)
	_ = c1
	c1 = s.want(next, 1, 10, dedup.Claimed)
	next.Leave(20)
	next.Leave(30)
	s.complete(c1, 1)
	if got := next.Floor(); got != 30 {
		t.Errorf("floor %d, want 30", got)
	}
}

func TestPartitions_types_that_come_later_are_behind_the_floor(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	take := func(owner string, types ...event.Type) *dedup.Tenure {
		t.Helper()
		taken, err := s.ledger.Take(t.Context(), "payment", []int{7}, dedup.Ownership{Owner: owner, Window: 16, Types: types})
		if err != nil {
			t.Fatal(err)
		}
		return taken[7]
	}
	behind := func(tenure *dedup.Tenure, want map[event.Type]uint64) {
		t.Helper()
		if got := tenure.Behind(); !maps.Equal(got, want) {
			t.Errorf("behind are %v, want %v", got, want)
		}
	}
	const x, y = "order.placed.v1", "order.cancelled.v1"
	first := take("a", x)
	behind(first, map[event.Type]uint64{})
	s.complete(s.want(first, 1, 10, dedup.Claimed), 1)
	second := take("b", x, y)
	behind(second, map[event.Type]uint64{y: 0})
	if !second.EnterBehind(5) || second.EnterBehind(5) {
		t.Error("a message behind the floor enters once")
	}
	if done, err := second.CatchUp(t.Context()); done || err != nil {
		t.Errorf("caught up with a message under way: %v %v", done, err)
	}
	c, err := s.ledger.Claim(t.Context(), dedup.Request{Consumer: "payment", Key: keyOf(2), Tenure: second, Sequence: 5, Lease: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s.complete(c, 2)
	if done, err := second.CatchUp(t.Context()); !done || err != nil {
		t.Errorf("not caught up: %v %v", done, err)
	}
	third := take("c", x)
	behind(third, map[event.Type]uint64{})
	s.complete(s.want(third, 3, 20, dedup.Claimed), 3)
	behind(take("d", x, y), map[event.Type]uint64{y: 10})
}

func TestPartitions_suspect_that_comes_again_has_crashed_once(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.want(s.take("a"), 1, 10, dedup.Claimed)
	s.want(s.take("b"), 1, 10, dedup.Claimed) // careful: it says that the event starts
	third := s.take("c")
	for range 3 {
		c := s.want(third, 1, 10, dedup.Claimed)
		if c.Crashes != 1 {
			t.Fatalf("%d crashes, want 1", c.Crashes)
		}
		if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil { // its turn has not come
			t.Fatal(err)
		}
	}
	s.want(third, 1, 10, dedup.Claimed)
	if c := s.want(s.take("d"), 1, 10, dedup.Claimed); c.Crashes != 2 {
		t.Errorf("%d crashes, want 2", c.Crashes)
	}
}

func TestPartitions_owner_that_takes_its_partition_again_has_not_crashed(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.take("a")
	s.want(s.take("b"), 1, 10, dedup.Claimed)
	if c := s.want(s.take("b"), 1, 10, dedup.Claimed); c.Crashes != 0 {
		t.Errorf("%d crashes of an owner that lives, want 0", c.Crashes)
	}
	if c := s.want(s.take("c"), 1, 10, dedup.Claimed); c.Crashes != 1 {
		t.Errorf("%d crashes of an owner that is gone, want 1", c.Crashes)
	}
}
