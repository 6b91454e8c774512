package order

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farandole/farandole/internal/web"
)

func TestPlaceOrder_waits_until_others_have_ended(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		p.room.limit = 2
		first, second := p.order("k-1"), p.order("k-2")

		refused := p.call(http.MethodPost, "/orders", key("k-3"), twoWidgets)
		isProblem(t, "a third order", refused, http.StatusServiceUnavailable)
		if kind := parse[web.Problem](t, refused.body).Type; kind != "urn:farandole:problem:busy" {
			t.Errorf("type %q", kind)
		}
		if after := refused.header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After is %q", after)
		}
		if orders := p.orders(); len(orders) != 2 {
			t.Errorf("orders %+v", orders)
		}

		placed := make(chan error, 1)
		go func() { _, err := p.place("k-3"); placed <- err }()
		s.exec(`UPDATE orders SET status = 'confirmed' WHERE order_id = $1`, first)
		if err := <-placed; err != nil {
			t.Errorf("after one has ended: %v", err)
		}
		// One that hangs is no reason to refuse others for ever.
		s.exec(`UPDATE orders SET created_at = $2 WHERE order_id = $1`, second, p.table.time(now().Add(-2*roomAge)))
		p.order("k-4")
	})
}

// Whoever has found no place is told so, also if the last count takes too long.
func TestRoom_is_full_when_only_the_last_count_hangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		r := room{limit: 1, count: func(ctx context.Context, _ time.Time, _ int) (int, error) {
			if calls++; calls == 1 {
				return 1, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		if err := r.enter(t.Context()); !errors.Is(err, errFull) {
			t.Errorf("after a count: %v", err)
		}
		if err := r.enter(t.Context()); errors.Is(err, errFull) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without any: %v", err)
		}
	})
}

func TestRoom_is_not_blocked_by_a_count_that_hangs(t *testing.T) {
	t.Parallel()
	hanging := make(chan struct{})
	calls := 0
	r := room{limit: 2, count: func(ctx context.Context, _ time.Time, _ int) (int, error) {
		if calls++; calls == 1 {
			return 0, nil
		}
		close(hanging)
		<-ctx.Done()
		return 0, ctx.Err()
	}}
	if err := r.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.looked = time.Time{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.enter(ctx) }()
	<-hanging
	if err := r.enter(t.Context()); err != nil {
		t.Errorf("with a place that is left: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
