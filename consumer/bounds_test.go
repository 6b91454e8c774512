package consumer

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestSlotsBoundWhatRuns(t *testing.T) {
	t.Parallel()
	s := newSlots(3)
	var running, most atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			slot := s.slot()
			if !slot.acquire(nil) {
				t.Error("acquire refused while nothing stops")
				return
			}
			defer slot.release()
			n := running.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			running.Add(-1)
			slot.release() // twice is once
		})
	}
	all.Wait()
	if n := most.Load(); n > 3 {
		t.Errorf("%d ran at once, want at most 3", n)
	}
	if n := s.taken; n != 0 {
		t.Errorf("%d slots taken after all were released", n)
	}
}

func TestSlotsLetNothingStartOnceStopped(t *testing.T) {
	t.Parallel()
	s := newSlots(1)
	first, second := s.slot(), s.slot()
	if !first.acquire(nil) {
		t.Fatal("acquire refused")
	}
	waiting := make(chan bool)
	go func() { waiting <- second.acquire(nil) }()
	s.stop()
	if <-waiting {
		t.Error("a waiting acquire succeeded after the stop")
	}
	s = newSlots(1)
	s.stop()
	if free := s.slot(); free.acquire(nil) {
		t.Error("an acquire succeeded after the stop although a slot was free")
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	b := newBudget(10)
	watchers := []<-chan struct{}{b.watch(), b.watch()}
	for _, tt := range []struct{ least, most, want int }{
		{1, 4, 4},
		{7, 20, 0}, // six are left
		{6, 20, 6},
		{1, 1, 0},
		{0, 5, 0},
	} {
		if got := b.reserve(tt.least, tt.most); got != tt.want {
			t.Errorf("reserve(%d, %d) = %d, want %d", tt.least, tt.most, got, tt.want)
		}
	}
	b.overdraw()
	b.release(1)
	if got := b.reserve(1, 1); got != 0 {
		t.Errorf("reserve = %d while overdrawn, want 0", got)
	}
	b.release(10)
	for _, freed := range watchers {
		select {
		case <-freed:
		default:
			t.Error("release does not signal to all")
		}
	}
	if b.free != 10 {
		t.Errorf("free = %d after everything came back, want 10", b.free)
	}
	b.release(0)
	b.release(-3)
	if b.free != 10 {
		t.Errorf("free = %d after releasing nothing, want 10", b.free)
	}
}

func TestBudgetSwapsPlacesForBytes(t *testing.T) {
	t.Parallel()
	b := newBudget(2)
	b.reserve(2, 2)
	if !b.swap(maxExtra-1) || b.free != 1 {
		t.Errorf("%d places are free after one was given up, want 1", b.free)
	}
	if b.swap(2) || b.free != 1 {
		t.Error("more bytes are held than there may be")
	}
	b.shrink(maxExtra - 1)
	if !b.swap(2) || b.free != 2 {
		t.Errorf("%d places are free after both were given up, want 2", b.free)
	}
}

func TestBudgetOfManyPullersIsNeverExceeded(t *testing.T) {
	t.Parallel()
	const places = 50
	b := newBudget(places)
	var held, most atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 1000 {
				n := b.reserve(1, 1+i)
				now := held.Add(int64(n))
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				held.Add(int64(-n))
				b.release(n)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > places {
		t.Errorf("%d reserved at once, want at most %d", n, places)
	}
	if b.free != places {
		t.Errorf("free = %d at the end, want %d", b.free, places)
	}
}
