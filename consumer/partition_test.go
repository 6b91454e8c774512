package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

func TestPartitions_handle_each_event_once_in_order_of_its_key(t *testing.T) {
	s := newSystem(t)
	s.kind = partitionKind
	const keys, each = 20, 5
	var mu sync.Mutex
	seen := map[event.Key][]int64{}
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o orderData) (consumer.Step, error) {
		mu.Lock()
		defer mu.Unlock()
		k := event.PartitionKey(e)
		seen[k] = append(seen[k], o.Amount)
		return pay(e), nil
	})
	publish := func(from int64) {
		for i := range int64(each) {
			for k := range keys {
				s.publish(placed.New(event.Key(fmt.Sprintf("ord-%d", k)), orderData{Amount: from + i}))
			}
		}
	}
	publish(0)
	first := s.start(config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == keys*each })
	second := s.start(config(), r, nil)
	publish(each)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 2*keys*each })
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	publish(2 * each)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 3*keys*each })
	second.crash()
	publish(3 * each)
	s.start(config(), r, nil)
	bustest.Eventually(t, soon, func() bool { return len(s.stored(paid.Type())) == 4*keys*each })
	for k, amounts := range seen {
		for i, a := range amounts {
			if a != int64(i) {
				t.Fatalf("%s: handled %v", k, amounts)
			}
		}
	}
}
