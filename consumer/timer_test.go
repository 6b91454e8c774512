package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// due is the event of the tests' timers.
var due = event.Define[orderData]("order.deadline.v1")

func deadline(key event.Key, after time.Duration) consumer.Timer {
	return consumer.Timer{Name: "deadline", After: after, Event: due.New(key, orderData{Amount: 1})}
}

func deadlineOf(key event.Key) []consumer.TimerID {
	return []consumer.TimerID{{Name: "deadline", Key: key}}
}

// timing sets a timer for each order and ends it when the order is paid.
func timing(after time.Duration) *consumer.Registry {
	return timingBy(func(orderData) time.Duration { return after })
}

// timingBy is timing with a time for each order.
func timingBy(after func(orderData) time.Duration) *consumer.Registry {
	r := consumer.NewRegistry()
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, o orderData) (consumer.Step, error) {
		return consumer.Step{Timers: []consumer.Timer{deadline(event.PartitionKey(e), after(o))}}, nil
	})
	consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
		return consumer.Step{Cancel: deadlineOf(event.PartitionKey(e))}, nil
	})
	return r
}

// inData is the time in milliseconds that [system.cancelHalf] wants.
func inData(o orderData) time.Duration { return time.Duration(o.Amount) * time.Millisecond }

// cancelHalf sets timers, lets something happen, and cancels every other timer.
// A machine too slow to cancel them before they are due gets more time for others.
func (s *system) cancelHalf(orders int, between func()) (set, cancelled []string) {
	s.tb.Helper()
	for after := 2 * time.Second; ; after *= 2 {
		begin := time.Now()
		set, cancelled = nil, nil
		for i := range orders {
			key := fmt.Sprintf("o-%s-%d", after, i)
			s.publish(placed.New(event.Key(key), orderData{Amount: after.Milliseconds()}))
			if i%2 == 0 {
				set = append(set, key)
			} else {
				cancelled = append(cancelled, key)
			}
		}
		s.settled("payment")
		between()
		for _, key := range cancelled {
			s.publish(paid.New(event.Key(key), orderData{}))
		}
		s.settled("payment")
		if time.Since(begin) < after {
			return set, cancelled
		}
	}
}

// notFired checks that timers have published nothing.
func (s *system) notFired(keys ...string) {
	s.tb.Helper()
	events, err := s.countDue()
	if err != nil {
		s.tb.Fatal(err)
	}
	for _, key := range keys {
		if n := events[key]; n != 0 {
			s.tb.Errorf("the cancelled timer of %s has fired %d times", key, n)
		}
	}
}

// waiting returns what lies on a key's timer.
func (s *system) waiting(key string) []*nats.Msg {
	s.tb.Helper()
	return s.messages(s.bus.Names().TimersStream(), s.bus.Names().TimerSubject("payment", "deadline", event.Key(key)))
}

// fired waits until the timers have published their events, each one.
func (s *system) fired(keys ...string) {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		events, err := s.countDue()
		for _, key := range keys {
			if n := events[key]; n != 1 && err == nil {
				err = fmt.Errorf("the timer of %s has fired %d times", key, n)
			}
		}
		return err
	})
}

// countDue counts the timers' events by key.
func (s *system) countDue() (map[string]uint64, error) {
	stream, err := s.bus.JetStream().Stream(s.tb.Context(), s.bus.Names().EventsStream())
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(s.tb.Context(), jetstream.WithSubjectFilter(s.bus.Names().TypeFilter(due.Type())))
	if err != nil {
		return nil, err
	}
	events := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		events[subject[strings.LastIndexByte(subject, '.')+1:]] = n
	}
	return events, nil
}

func TestTimerIsAnEventForLater(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start(config(), timing(time.Second), nil)
	e := s.publish(draft("o 1"))[0]
	s.fired("o=201")
	cause := s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(placed.Type()))[0]
	meta, err := cause.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	m := s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(due.Type()))[0]
	got, err := event.Decode(m.Header, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	want := consumer.TimerIdentity("payment", e, consumer.TimerID{Name: "deadline", Key: "o 1"}, meta.Timestamp.Add(time.Second))
	if got.ID() != want.ID || got.Source() != "/payment" || !got.Time().Equal(want.Time) ||
		event.Extension(got, event.ExtCausation) != e.ID() || event.Extension(got, event.ExtCorrelation) != "o 1" || string(got.Data()) != `{"amount":1}` {
		t.Errorf("the timer's event is\n%s, want id %s, time %s", got, want.ID, want.Time)
	}
	if want := s.storedOn(due.Type(), "o 1"); m.Subject != want {
		t.Errorf("stored on %s, want %s", m.Subject, want)
	}
	if at, err := m.Metadata(); err != nil || at.Timestamp.Before(got.Time()) {
		t.Errorf("fired at %v (%v), before its time %v", at.Timestamp, err, got.Time())
	}
	if left := s.waiting("o 1"); len(left) != 0 {
		t.Errorf("the timer is still there: %v", left[0].Header)
	}
}

func TestTimerWhoseTimeHasPassedFiresAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publishN(1)
	// The event is older than its timer takes when the consumer gets to it.
	s.start(config(), timing(time.Nanosecond), nil)
	s.fired("o-0")
}

func TestTimerIsCancelled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start(config(), timingBy(inData), nil)
	set, cancelled := s.cancelHalf(4, func() {})
	for _, m := range s.waiting(cancelled[0]) {
		if m.Header.Get(jetstream.ScheduleHeader) != "" {
			t.Error("the timer is still there")
		}
	}
	s.fired(set...) // the same time would have come for the others
	// What is left is the server's marker, for a minute.
	bustest.Eventually(t, soon, func() bool {
		return !slices.ContainsFunc(s.waiting(cancelled[0]), func(m *nats.Msg) bool { return m.Header.Get(jetstream.MarkerReasonHeader) == "" })
	})
	s.notFired(cancelled...)
}

// TestTimerNeverSetIsCancelled: ending it is no error, and ends no other key's.
func TestTimerNeverSetIsCancelled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), timing(time.Second), nil)
	s.publish(paid.New("never", orderData{}), draft("set"))
	s.settled("payment")
	s.fired("set")
	if st := p.Stats(); st.Handled != 2 || st.Parked != 0 {
		t.Errorf("stats %+v, want 2 handled", st)
	}
}

func TestTimerSetAgainReplacesTheFirst(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		after := time.Hour
		if e.ID() == "second" {
			after = time.Second
		}
		return consumer.Step{Timers: []consumer.Timer{deadline("o-1", after)}}, nil
	}), nil)
	var events []event.Event
	for _, id := range []string{"first", "second"} {
		d := draft(id)
		d.Key = "o-1"
		events = append(events, s.publish(d)...)
		s.settled("payment")
	}
	if n := len(s.waiting("o-1")); n > 1 {
		t.Fatalf("%d timers wait, want one", n)
	}
	s.fired("o-1")
	if got := event.Extension(s.stored(due.Type())[0], event.ExtCausation); got != events[1].ID() {
		t.Errorf("caused by %s, want %s", got, events[1].ID())
	}
}

// TestTimerOfARerunIsTheSame: a crash between setting the timer and the done
// mark. Without the duplicate window too, the rerun sets the same timer.
func TestTimerOfARerunIsTheSame(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var once tally
	wrap := func(p *process, l dedup.Ledger) dedup.Ledger {
		return &forgetful{Ledger: l, p: p, once: &once}
	}
	s.start(config(), timing(time.Hour), wrap)
	e := s.publishN(1)[0]
	s.settled("payment")
	if n := once.of("complete"); n != 2 {
		t.Fatalf("completed %d times, want 2", n)
	}
	left := s.waiting("o-0")
	if len(left) != 1 {
		t.Fatalf("%d timers wait, want one", len(left))
	}
	meta, err := s.messages(s.bus.Names().EventsStream(), s.bus.Names().TypeFilter(placed.Type()))[0].Metadata()
	if err != nil {
		t.Fatal(err)
	}
	at := meta.Timestamp.Add(time.Hour)
	want := consumer.TimerIdentity("payment", e, consumer.TimerID{Name: "deadline", Key: "o-0"}, at)
	if h := left[0].Header; h.Get("ce-id") != want.ID || h.Get(jetstream.ScheduleHeader) != event.ScheduleAt(at) {
		t.Errorf("the timer is %s, %s; want %s at %v", h.Get("ce-id"), h.Get(jetstream.ScheduleHeader), want.ID, at)
	}
}

// forgetful stores the outgoing messages of the first completion without their
// ids and says that nothing is known of them.
type forgetful struct {
	dedup.Ledger
	p    *process
	once *tally
}

func (f *forgetful) Complete(ctx context.Context, c *dedup.Claim, out []*nats.Msg) error {
	if f.once.add("complete") > 1 {
		return f.Ledger.Complete(ctx, c, out)
	}
	for _, m := range out {
		m.Header.Del(nats.MsgIdHdr)
		if _, err := f.p.bus.JetStream().PublishMsg(ctx, m); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: acknowledgement lost", bus.ErrUnavailable)
}

// TestTimerCountsFromTheEvent: neither a retry nor a replay makes it later.
func TestTimerCountsFromTheEvent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	mended := make(chan struct{})
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		select {
		case <-mended:
			return consumer.Step{Timers: []consumer.Timer{deadline(event.PartitionKey(e), time.Hour)}}, nil
		default:
			return consumer.Step{}, consumer.Permanent(errFlaky)
		}
	}), nil)
	s.publishN(1)
	origin := s.letter().Origin
	close(mended)
	s.replayAll()
	bustest.Eventually(t, soon, func() bool { return len(s.waiting("o-0")) == 1 })
	if got, want := s.waiting("o-0")[0].Header.Get(jetstream.ScheduleHeader), event.ScheduleAt(origin.Time.Add(time.Hour)); got != want {
		t.Errorf("the replayed event's timer is set for %s, want %s", got, want)
	}
}

func TestTimersThatCannotBeAreDeadLettered(t *testing.T) {
	t.Parallel()
	var (
		ok   = deadline("k", time.Second)
		none = consumer.Timer{Name: "deadline", After: time.Second}
		odd  = consumer.Timer{Name: "a.b", After: time.Second, Event: ok.Event}
		own  = consumer.Timer{Name: "retry", After: time.Second, Event: ok.Event}
		huge = ok
	)
	huge.Event.Data = []byte(strings.Repeat("x", 2<<20))
	for name, tt := range map[string]struct {
		step consumer.Step
		want string
	}{
		"a name with a dot":  {consumer.Step{Timers: []consumer.Timer{odd}}, `name "a.b"`},
		"a name of our own":  {consumer.Step{Timers: []consumer.Timer{own}}, `"retry" is reserved`},
		"no key":             {consumer.Step{Timers: []consumer.Timer{none}}, "empty key"},
		"no time":            {consumer.Step{Timers: []consumer.Timer{deadline("k", 0)}}, "after 0s"},
		"the past":           {consumer.Step{Timers: []consumer.Timer{deadline("k", -1)}}, "after -1ns"},
		"too far away":       {consumer.Step{Timers: []consumer.Timer{deadline("k", consumer.MaxTimer+1)}}, "at most 8784h0m0s"},
		"set twice":          {consumer.Step{Timers: []consumer.Timer{ok, ok}}, "deadline of k is set or cancelled twice"},
		"set and cancelled":  {consumer.Step{Timers: []consumer.Timer{ok}, Cancel: deadlineOf("k")}, "deadline of k is set or cancelled twice"},
		"cancels no name":    {consumer.Step{Cancel: []consumer.TimerID{{Key: "k"}}}, `name ""`},
		"cancels without":    {consumer.Step{Cancel: []consumer.TimerID{{Name: "deadline"}}}, "empty key"},
		"too large an event": {consumer.Step{Timers: []consumer.Timer{huge}}, "the server takes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.start(config(), handling(func(context.Context, event.Event) (consumer.Step, error) { return tt.step, nil }), nil)
			s.publishN(1)
			if l := s.letter(); l.Reason != event.ReasonPermanent || !strings.Contains(l.Error, tt.want) {
				t.Errorf("letter says %s: %s, want permanent: %s", l.Reason, l.Error, tt.want)
			}
		})
	}
}

func TestTimerBeyondTheStreamsAgeIsRefused(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	wanted := topology.New(s.bus.Names(), topology.Config{})
	wanted.Streams[0].MaxAge = time.Hour // that of timers
	if _, err := topology.Provision(t.Context(), s.bus, wanted); err != nil {
		t.Fatal(err)
	}
	s.start(config(), timing(time.Hour), nil)
	s.publishN(1)
	if l := s.letter(); l.Reason != event.ReasonPermanent || !strings.Contains(l.Error, "drops messages after 1h0m0s") {
		t.Errorf("letter says %s: %s", l.Reason, l.Error)
	}
}

// TestTimersNeedAPreparedStream: an event that sets a timer waits, unhealthy
// and unspent, until the stream keeps timers.
func TestTimersNeedAPreparedStream(t *testing.T) {
	t.Parallel()
	s := bareSystem(t)
	old := topology.New(s.bus.Names(), topology.Config{})
	old.Streams[0].AllowMsgSchedules = false
	if _, err := topology.Provision(t.Context(), s.bus, old); err != nil {
		t.Fatal(err)
	}
	p := s.start(config(), timing(time.Second), nil)
	e := s.publishN(1)[0]
	bustest.Eventually(t, soon, func() bool {
		err := p.Health()
		return errors.Is(err, consumer.ErrNoTimers) && strings.Contains(err.Error(), "farandole topology apply")
	})
	bustest.Provision(t, s.bus, topology.Config{})
	s.fired("o-0")
	bustest.Eventually(t, soon, p.Health)
	if m := s.mark("payment", event.EventKeyOf(e)); m.State != "done" || m.Failures != 0 {
		t.Errorf("%s after %d failures, want done after none", m.State, m.Failures)
	}
}

// TestTimerLeavesNothingInItsStream: the server keeps a copy of what was due; who
// has handled the event removes it.
func TestTimerLeavesNothingInItsStream(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r := timing(time.Millisecond)
	handled := make(chan struct{}, 1)
	consumer.Handle(r, due, func(context.Context, event.Event, orderData) (consumer.Step, error) {
		handled <- struct{}{}
		return consumer.Step{}, nil
	})
	s.start(config(), r, nil)
	s.publishN(1)
	<-handled
	bustest.Eventually(t, soon, func() error {
		stream, err := s.bus.JetStream().Stream(t.Context(), s.bus.Names().TimersStream())
		if err != nil {
			return err
		}
		if n := stream.CachedInfo().State.Msgs; n > 0 {
			return fmt.Errorf("%d messages are left", n)
		}
		return nil
	})
}
