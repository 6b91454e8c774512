package dedup_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// newLossyShop is one whose ledger loses, while lossy is true, what of its frames match.
func newLossyShop(t *testing.T, sent, received func(frame []byte) bool) (s shop, lossy *atomic.Bool) {
	t.Helper()
	lossy = new(atomic.Bool)
	hook := func(match func([]byte) bool) wiretap.Hook {
		return func(frame []byte) wiretap.Verdict {
			if match != nil && lossy.Load() && match(frame) {
				return wiretap.Drop
			}
			return wiretap.Pass
		}
	}
	s = newShop(t)
	s.bus = bustest.Connect(t, bus.Config{
		InProcess: wiretap.New(bustest.Server(t), hook(sent), hook(received)), Names: s.bus.Names(), PublishTimeout: time.Second,
	})
	var err error
	if s.ledger, err = dedup.NewPartitions(s.bus, dedup.PartitionsConfig{}); err != nil {
		t.Fatal(err)
	}
	return s, lossy
}

// paged matches messages that a step of a partition consists of.
func paged(frame []byte) bool { return strings.Contains(wiretap.Subject(frame), "ledger.payment.") }

func TestPartitions_event_whose_release_was_lost_can_be_claimed_again(t *testing.T) {
	t.Parallel()
	s, lossy := newLossyShop(t, paged, nil)
	owner := s.take("a")
	c := s.want(owner, 1, 10, dedup.Claimed)
	lossy.Store(true)
	if err := s.ledger.Release(t.Context(), c, &event.Attempt{Number: 1, Error: "declined"}, nil); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("release: %v, want ErrUnavailable", err)
	}
	lossy.Store(false)
	if c = s.want(owner, 1, 10, dedup.Claimed); c.Failures != 0 {
		t.Errorf("%d failures, want none: it was not stored", c.Failures)
	}
	s.complete(c, 1)
}

// The server has stored what its owner takes for lost.
func TestPartitions_step_whose_answer_was_lost_is_not_done_twice(t *testing.T) {
	t.Parallel()
	s, lossy := newLossyShop(t, nil, func(frame []byte) bool { return strings.HasPrefix(wiretap.Subject(frame), "_INBOX.") })
	owner := s.take("a")
	c := s.want(owner, 1, 10, dedup.Claimed)
	lossy.Store(true)
	err := s.ledger.Complete(t.Context(), c, s.emit(1))
	lossy.Store(false)
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("complete: %v, want ErrUnavailable", err)
	}
	if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil && !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatal(err)
	}
	if _, err := s.claim(owner, 1, 10); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatalf("claim: %v, want the owner to find out that it does not know its last page", err)
	}
	s.want(s.take("a"), 1, 10, dedup.Done)
}

// A page was refused, and nobody tells why: that is not the event's fault.
func TestPartitions_conflict_without_a_reason_is_an_outage(t *testing.T) {
	t.Parallel()
	s, lossy := newLossyShop(t, func(frame []byte) bool { return strings.Contains(wiretap.Subject(frame), ".DIRECT.GET.") }, nil)
	zombie := s.take("a")
	c := s.want(zombie, 1, 10, dedup.Claimed)
	s.take("b")
	lossy.Store(true)
	if err := s.ledger.Complete(t.Context(), c, s.emit(1)); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("complete: %v, want ErrUnavailable", err)
	}
	lossy.Store(false)
	if err := s.ledger.Release(t.Context(), c, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := s.claim(zombie, 1, 10); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Errorf("claim: %v, want ErrLeaseLost", err)
	}
}
