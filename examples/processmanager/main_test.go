package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

const fulfilled = "order.placed payment.charge payment.charged inventory.reserve inventory.reserved shipping.ship shipping.shipped order.completed"

// Two events say that the order was placed: it is taken once.
func TestOrderIsFulfilled(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	s.publish(placed("ord-1"), "1")
	s.publish(placed("ord-1"), "2")
	s.manage(deadline)
	s.became("ord-1", "order.placed "+fulfilled)
}

func TestRefusedOrderIsUndoneInReverse(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]string{"shipping.ship ord-1": "refused", "payment.charge ord-2": "refused"})
	s.manage(deadline)
	s.publish(placed("ord-1"), "1")
	s.publish(placed("ord-2"), "1")
	s.became("ord-1", "order.placed payment.charge payment.charged inventory.reserve inventory.reserved shipping.ship shipping.refused "+
		"inventory.release inventory.released payment.refund payment.refunded order.cancelled")
	s.became("ord-2", "order.placed payment.charge payment.refused order.cancelled")
}

// A service does not reply. When the order's time is over its part is undone, too.
func TestOverdueOrderIsUndone(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]string{"inventory.reserve ord-1": "silence"})
	s.manage(3 * time.Second)
	s.publish(placed("ord-1"), "1")
	s.became("ord-1", "order.placed payment.charge payment.charged inventory.reserve order.overdue "+
		"inventory.release inventory.released payment.refund payment.refunded order.cancelled")
}

// The process is killed in the midst of many orders, and replies come while there is
// none. The next process goes on with each order where it was: all parts are done, and
// no command is stored twice.
func TestKilledProcessIsResumed(t *testing.T) {
	t.Parallel()
	const n, waiting = 200, 20
	held := map[string]string{} // the first orders wait for a reply
	for i := range waiting {
		held[fmt.Sprint("inventory.reserve ord-", i)] = "silence"
	}
	s := open(t, held)
	place := func(from, to int) {
		for i := from; i < to; i++ {
			s.publish(placed(event.Key(fmt.Sprint("ord-", i))), "1")
		}
	}
	count := func(what string) (n int) {
		for _, story := range s.story() {
			n += strings.Count(story+" ", what+" ")
		}
		return n
	}
	first := s.process()
	place(0, waiting)
	bustest.Eventually(t, within, func() bool { return count("inventory.reserve") == waiting })
	place(waiting, n)
	bustest.Eventually(t, within, func() bool { return count("order.completed") > 0 })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	t.Logf("killed when %d of %d orders were finished", count("order.completed"), n)
	for i := range waiting {
		s.publish(itemsReserved.New(event.Key(fmt.Sprint("ord-", i)), Reply{}), "reply")
	}
	second := s.process()
	bustest.Eventually(t, within, func() error {
		if done := count("order.completed"); done < n {
			return fmt.Errorf("%d of %d orders are finished", done, n)
		}
		return nil
	})
	for id, story := range s.story() {
		if story != fulfilled {
			t.Errorf("%s: %s", id, story)
		}
	}
	if err := second.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
}
