package consumer

import (
	"testing"
	"time"
)

func TestSuspectsRunOneAtATime(t *testing.T) {
	t.Parallel()
	a, b := &delivery{redelivered: true}, &delivery{redelivered: true}
	s := newSuspects()
	if !s.enter(a) || !s.enter(b) {
		t.Fatal("nothing runs, and yet one may not enter")
	}
	if !s.take(a) || s.take(b) {
		t.Fatal("want a in and b out")
	}
	admitted := make(chan struct{})
	go func() {
		s.admit(a, time.Hour)
		close(admitted)
	}()
	select {
	case <-admitted:
		t.Fatal("a runs although b has not given its claim back")
	case <-time.After(20 * time.Millisecond):
	}
	s.leave(b)
	<-admitted
	if s.enter(b) {
		t.Error("b may claim although a runs")
	}
	if !s.enter(&delivery{}) {
		t.Error("a first delivery is no suspect, and yet it may not enter")
	}
	s.leave(a)
	if !s.enter(b) || !s.take(b) {
		t.Error("the place is not free after a left")
	}
	s.admit(b, time.Hour)
	s.leave(b)
	if s.owner != nil || len(s.entering) != 0 || s.alone != nil {
		t.Errorf("something is left: %+v", s)
	}
}

func TestSuspectDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	a, slow := &delivery{redelivered: true}, &delivery{redelivered: true}
	s := newSuspects()
	s.enter(a)
	s.enter(slow)
	s.take(a)
	s.admit(a, time.Millisecond)
	s.leave(slow)
	s.leave(a)
	if s.owner != nil || len(s.entering) != 0 || s.alone != nil {
		t.Errorf("something is left: %+v", s)
	}
}

func TestOthersDoNotWaitForASuspect(t *testing.T) {
	t.Parallel()
	a, plain := &delivery{redelivered: true}, &delivery{redelivered: true}
	s := newSuspects()
	s.enter(plain)
	s.enter(a)
	s.take(a)
	s.admit(plain, time.Hour) // it has no crash behind it, and runs
	s.admit(a, time.Hour)
}
