package event_test

import (
	"testing"

	"github.com/farandole/farandole/event"
)

// The same as the server's partition(n,4), which is proved beside the topology
// (TestPartitionOfIsWhereTheServerStoresAnEvent).
func TestPartitionOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[event.Key]int{"ord-1": 18, "a b": 17, "é": 27} {
		if got := event.PartitionOf(key, event.DefaultPartitions); got != want {
			t.Errorf("%q is in %d, want %d", key, got, want)
		}
		if got := event.PartitionOf(key, 1); got != 0 {
			t.Errorf("%q is in %d of one", key, got)
		}
	}
}

func TestSubjectsWithPartition(t *testing.T) {
	t.Parallel()
	shop := event.Names{Prefix: "shop", TypePrefix: "com.acme."}
	for name, tt := range map[string]struct{ got, want string }{
		"type":    {shop.TypePartitionFilter("com.acme.order.placed.v1", 17), "shop.events.order.placed.v1.17.*"},
		"redrive": {shop.RedrivePartitionFilter("payment", 17), "shop.redrive.payment.*.*.*.17.*"},
		"redrive of a stored subject": {
			shop.RedriveSubject("payment", "shop.events.order.placed.v1.17.k"), "shop.redrive.payment.order.placed.v1.17.k",
		},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.got, tt.want)
		}
	}
}

func TestStoredAndPublished(t *testing.T) {
	t.Parallel()
	n := event.Names{Prefix: "shop"}
	for _, tt := range []struct{ published, stored string }{
		{"shop.events.order.placed.v1.ord-1", "shop.events.order.placed.v1.18.ord-1"},
		{"shop.events.order.placed.v1.7", "shop.events.order.placed.v1.22.7"},
		{"shop.redrive.payment.order.placed.v1.ord-1", "shop.redrive.payment.order.placed.v1.18.ord-1"},
		{"shop.redrive.payment.legacy.orders", "shop.redrive.payment.legacy.orders"},
		{"shop.redrive.payment.a.b.c.d", "shop.redrive.payment.a.b.c.d"},
		{"shop.events.order.placed.v1.ord.1", "shop.events.order.placed.v1.ord.1"},
		{"shop.ledger.payment.k", "shop.ledger.payment.k"},
		{"events.order.placed.v1.ord-1", "events.order.placed.v1.ord-1"},
		{"shop.events", "shop.events"},
	} {
		if got := n.Stored(tt.published, 32); got != tt.stored {
			t.Errorf("%s is stored on %s, want %s", tt.published, got, tt.stored)
		}
		if got := n.Stored(tt.stored, 32); got != tt.stored {
			t.Errorf("%s is stored on %s", tt.stored, got)
		}
		if got := n.Stored(tt.published, 0); got != tt.published {
			t.Errorf("without partitions %s is stored on %s", tt.published, got)
		}
		if got := n.Published(tt.stored); got != tt.published {
			t.Errorf("%s was published on %s, want %s", tt.stored, got, tt.published)
		}
		if _, ok := n.StoredPartition(tt.published); ok {
			t.Errorf("%s has a partition", tt.published)
		}
		p, ok := n.StoredPartition(tt.stored)
		if want := tt.stored != tt.published; ok != want || ok && p != 18 && p != 22 {
			t.Errorf("%s is in partition %d, %v", tt.stored, p, ok)
		}
	}
	if got := n.Stored("shop.events.order.placed.v1.31.ord-1", 32); got != "shop.events.order.placed.v1.18.ord-1" {
		t.Errorf("another partition stays: %s", got)
	}
}

func TestPartitionsAreReadFromATransform(t *testing.T) {
	t.Parallel()
	for _, n := range []event.Names{{}, {Prefix: "shop-1"}} {
		for _, want := range []int{1, 32, event.MaxPartitions} {
			if _, destination := n.PartitionTransform(want); !reads(destination, want) {
				t.Errorf("%s does not say %d", destination, want)
			}
		}
	}
	for destination, want := range map[string]int{
		"events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(8,4)}}.{{partition(1000,4)}}": 8, // folds keys
		"events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(8,4)}}":                       0,
		"events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(0,4)}}.{{wildcard(4)}}":       0,
		"events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(8,3)}}.{{wildcard(4)}}":       0,
		"events.{{wildcard(2)}}.{{wildcard(1)}}.{{wildcard(3)}}.{{partition(8,4)}}.{{wildcard(4)}}":       0,
		"": 0,
	} {
		if !reads(destination, want) {
			t.Errorf("%q: want %d", destination, want)
		}
	}
}

func reads(destination string, want int) bool {
	got, ok := event.PartitionsIn(destination)
	return got == want && ok == (want > 0)
}
