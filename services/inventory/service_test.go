package inventory

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/services/events"
)

// If one of several items is out of stock none is held, not even those before it.
func TestOneShortItemHoldsNothing(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]events.Item{
		"never in stock": of("unicorn", 1),
		"too few":        of("anvil", 3),
		"unknown SKU":    of("nonsense", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, map[string]int64{"widget": 10, "anvil": 2, "unicorn": 0})
			s.says(captured("ord-1", of("widget", 2), missing))
			s.said("ord-1", "rejected")
			s.is("widget", 10, 0, 0)
			s.says(cancelRequested("ord-1"), cancelRequested("ord-1"))
			s.said("ord-1", "rejected released")
			s.is("widget", 10, 0, 0)
		})
	}
}

func TestSecond_trigger_with_another_id_does_nothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	s.says(captured("ord-1", of("widget", 4)), captured("ord-1", of("widget", 4)))
	s.is("widget", 6, 4, 0)
	s.says(cancelRequested("ord-1"), cancelRequested("ord-1"))
	s.is("widget", 10, 0, 0)
	s.says(captured("ord-1", of("widget", 4)))
	s.is("widget", 10, 0, 0)
	s.said("ord-1", "reserved released")
}

func TestSecond_start_after_success_does_nothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	s.says(captured("ord-1", of("widget", 4)))
	s.says(confirmed("ord-1"), confirmed("ord-1"))
	s.is("widget", 6, 0, 4)
	s.says(captured("ord-1", of("widget", 4)), cancelRequested("ord-1"))
	s.is("widget", 6, 0, 4)
	s.said("ord-1", "reserved")
}

func TestCancelBeforeCaptureReservesNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	s.says(cancelRequested("ord-1"))
	s.says(captured("ord-1", of("widget", 1)))
	s.says(captured("ord-1", of("widget", 1)))
	s.said("ord-1", "released rejected")
	s.is("widget", 10, 0, 0)
}

// A confirmation that comes before the reservation is not swallowed: it waits
// in the dead letters, and a replay lets it take effect.
func TestConfirmation_before_the_reservation_is_kept(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	s.says(confirmed("ord-1"))
	if s.parked() != 1 {
		t.Fatalf("%d dead letters, want 1", s.parked())
	}
	s.is("widget", 10, 0, 0)
	s.says(captured("ord-1", of("widget", 4)))
	s.is("widget", 6, 4, 0)

	queue, err := letters.Open(s.bus)
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := queue.Replay(t.Context(), dlq.Selection{Filter: dlq.Filter{Consumer: Name}}, dlq.ReplayOptions{}, nil); err != nil || sum.Counts[dlq.Replayed] != 1 {
		t.Fatalf("replayed %+v, %v", sum, err)
	}
	s.stored.Add(1)
	s.settled()
	s.is("widget", 6, 0, 4)
}

// An invalid event is dead-lettered and changes nothing.
func TestUnusableEventsAreParked(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	var n uint64
	for _, items := range [][]events.Item{
		{of("widget", 0)},
		{of("widget", -3)},
		{of("widget", events.MaxQuantity+1)},
		{of("widget", math.MaxInt64)},
		{of("widget", 1), of("widget", 1)},
		{of("", 1)},
		nil,
	} {
		s.says(captured(fmt.Sprint("ord-", n), items...))
		n++
	}
	s.says(
		events.OrderCancelRequested.New("ord-1", events.CancelRequested{}),
		events.OrderConfirmed.New("ord-1", events.Confirmed{}),
	)
	if n += 2; s.parked() != n {
		t.Errorf("%d dead letters, want %d", s.parked(), n)
	}
	if len(s.orders()) != 0 || len(s.emitted()) != 0 {
		t.Errorf("documents %v, said %v", s.orders(), s.emitted())
	}
	s.is("widget", 10, 0, 0)
}

// If somebody has changed the documents so that too few pieces are held, the event is
// dead-lettered and the documents stay as they are.
func TestMeddledDocumentsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	o := Order{ID: "ord-1", Status: Reserved, Items: []events.Item{of("widget", 2)}}
	if err := s.instances[0].store.orders.Create(t.Context(), orderKey(o.ID), o); err != nil {
		t.Fatal(err)
	}
	s.says(confirmed("ord-1"), cancelRequested("ord-1"))
	if s.parked() != 2 || len(s.emitted()) != 0 {
		t.Errorf("%d dead letters, want 2; said %v", s.parked(), s.emitted())
	}
	x, err := s.instances[0].store.skus.Committed(t.Context(), skuKey("widget"))
	if err != nil || x.Value != (Stock{SKU: "widget", Initial: 10, Available: 10}) {
		t.Errorf("%+v, %v", x.Value, err)
	}
}

// The largest order that may be placed fits into one step.
func TestLargestOrderIsOneStep(t *testing.T) {
	t.Parallel()
	stock := map[string]int64{}
	var items []events.Item
	for i := range events.MaxItems {
		sku := fmt.Sprintf("part %d/%s", i, strings.Repeat("é", i%40)) // has to be escaped in a subject
		stock[sku] = events.MaxQuantity
		items = append(items, of(sku, events.MaxQuantity))
	}
	s := newSystem(t, stock)
	s.says(captured("ord-1", items...))
	s.said("ord-1", "reserved")
	s.says(captured("ord-2", items[7]), confirmed("ord-1"))
	s.said("ord-2", "rejected")
	for sku := range stock {
		if x := s.stock()[sku]; x.Reserved != events.MaxQuantity {
			t.Fatalf("%+v", x)
		}
		break
	}
}

// A restart does not change the stock, even with another initial stock.
func TestStockIsSeededOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t, map[string]int64{"widget": 10})
	s.says(captured("ord-1", of("widget", 3)))
	s.start(map[string]int64{"widget": 99, "anvil": 2})
	s.initial["anvil"] = 2
	s.is("widget", 7, 3, 0)
	s.is("anvil", 2, 0, 0)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	ledger, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for says, cfg := range map[string]Config{
		"Stock of widget is -1": {Stock: map[string]int64{"widget": -1}},
		"Consumer.Ledger":       {Consumer: consumer.Config{Ledger: ledger}},
		"InFlight":              {Consumer: consumer.Config{InFlight: 1}},
	} {
		if _, err := New(b, cfg); !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want ErrConfig saying %q", err, says)
		}
	}
}

// Run returns bus.ErrNoStream when the stream does not exist.
func TestRunWithoutStream(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}})
	s, err := New(b, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("got %v, want ErrNoStream", err)
	}
	if err := s.Health(); !errors.Is(err, ErrNotReady) {
		t.Errorf("got %v, want ErrNotReady", err)
	}
}
