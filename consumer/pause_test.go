package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/pauses"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// eachShared runs a test with competing replicas and with partitions.
func eachShared(t *testing.T, test func(t *testing.T, s *system)) {
	t.Helper()
	for name, kind := range map[string]kind{"competing": kvKind, "partitions": partitionKind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = kind
			test(t, s)
		})
	}
}

// away says that a dependency is not there.
type away struct{ after time.Duration }

func (a away) Error() string         { return "dependency is away" }
func (a away) NotYet() time.Duration { return a.after }

func TestNotYetIsNoAttempt(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		var there atomic.Bool
		cfg := config()
		cfg.MaxCrashes = 2
		p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			switch runs.add(e.ID()); {
			case there.Load():
				return pay(e), nil
			case runs.of(e.ID())%2 == 0:
				return consumer.Step{}, fmt.Errorf("charge: %w", away{20 * time.Millisecond})
			}
			return consumer.Step{}, consumer.NotYet(errFlaky, 20*time.Millisecond)
		}), nil)
		events := s.publishN(5)
		bustest.Eventually(t, soon, func() bool { // far more often than there are attempts
			for _, e := range events {
				if runs.of(e.ID()) < 4*cfg.Retry.MaxAttempts {
					return false
				}
			}
			return true
		})
		for _, e := range events {
			if m := s.mark(cfg.Name, event.EventKeyOf(e)); len(m.Attempts) > 0 || m.Crashes > 0 {
				t.Errorf("attempts spent: %+v", m)
			}
		}
		there.Store(true)
		s.settled(cfg.Name)
		if st := p.Stats(); st.Handled != 5 || st.Parked != 0 || st.Retried != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Events of a key run in their order although the first is not attempted for a while.
func TestNotYetKeepsTheOrderOfAPartition(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.kind = partitionKind
	var there atomic.Bool
	done := make(chan string, 10)
	s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if !there.Load() {
			return consumer.Step{}, consumer.NotYet(errFlaky, 30*time.Millisecond)
		}
		done <- e.ID()
		return consumer.Step{}, nil
	}), nil)
	for i := range 10 {
		d := placed.New("o-1", orderData{})
		d.ID = fmt.Sprint(i)
		s.publish(d)
		if i == 5 {
			there.Store(true)
		}
	}
	for i := range 10 {
		if id := <-done; id != fmt.Sprint(i) {
			t.Fatalf("event %s was number %d", id, i)
		}
	}
}

// A process that is held for three times AckWait keeps what it has, begins nothing,
// and spends nothing.
func TestHeldEventsAreKeptAliveLongerThanAckWait(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, s *system) {
		t.Helper()
		cfg := config()
		cfg.Lease, cfg.HandlerTimeout = 2*time.Second, time.Second // no less, for a busy machine
		var runs tally
		p := s.start(cfg, counting(&runs), nil)
		bustest.Eventually(t, soon, func() error { return balanced(t.Context(), s, 1) })
		other := s.start(cfg, counting(&runs), nil)
		const before, after = 50, 20
		bustest.Eventually(t, soon, func() error { return balanced(t.Context(), s, 2) })
		for _, q := range []*process{p, other} {
			q.Hold("test", consumer.Hold{Fetch: 25})
		}
		events := s.publishN(before)
		bustest.Eventually(t, soon, func() bool { return p.Waiting()+other.Waiting() == before })
		now, err := s.bus.Clock(s.bus.Names().EventsStream()).Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for _, q := range []*process{p, other} {
			q.Hold("test", consumer.Hold{PauseUntil: now.Add(time.Hour)})
		}
		bustest.Eventually(t, soon, func() bool { return pausedDurables(t, s) > 0 })
		for range after {
			s.publish(draft(fmt.Sprint("late-", time.Now().UnixNano())))
		}
		bustest.Eventually(t, soon, func() bool { return time.Since(begun) > 3*cfg.Lease+500*time.Millisecond })
		if n := len(runs.all()); n > 0 {
			t.Errorf("%d events ran while held", n)
		}
		for _, q := range []*process{p, other} {
			q.Release("test")
		}
		bustest.Eventually(t, soon, func() bool { return len(runs.all()) == before+after })
		s.settled(cfg.Name)
		var redelivered, parked uint64
		for _, q := range []*process{p, other} {
			st := q.Stats()
			redelivered += st.Busy + st.Duplicate + st.Released + st.Lost
			parked += st.Parked
		}
		if redelivered > 5 || parked > 0 {
			t.Errorf("%d came more than once, %d parked", redelivered, parked)
		}
		for _, e := range events {
			if m := s.mark(cfg.Name, event.EventKeyOf(e)); len(m.Attempts) > 0 || m.Crashes > 0 || runs.of(e.ID()) != 1 {
				t.Errorf("%d runs, %+v", runs.of(e.ID()), m)
			}
		}
	})
}

// balanced returns nil when so many members share all partitions, if there are any.
func balanced(ctx context.Context, s *system, members int) error {
	if s.open(s.bus).Partitions() == nil {
		return nil
	}
	st, err := consumer.Look(ctx, s.bus, "payment")
	if err != nil {
		return err
	}
	owners := map[string]bool{}
	for _, p := range st.Partitions {
		if !p.Owned {
			return fmt.Errorf("partition %d has no owner", p.Partition)
		}
		owners[p.Owner] = true
	}
	if len(owners) != members {
		return fmt.Errorf("%d owners, want %d", len(owners), members)
	}
	return nil
}

// pausedDurables counts the consumer's durables that the server has paused; -1 if it
// does not tell.
func pausedDurables(t *testing.T, s *system) (n int) {
	t.Helper()
	st, err := consumer.Look(t.Context(), s.bus, "payment")
	if err != nil {
		t.Log(err)
		return -1
	}
	for _, d := range st.Durables {
		if !d.PausedUntil.IsZero() {
			n++
		}
	}
	return n
}

func TestOperatorPausesAndResumes(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), counting(&runs), nil)
		s.publish(draft("first"))
		bustest.Eventually(t, soon, func() bool { return runs.of("first") == 1 })
		until, err := consumer.Pause{Consumer: "payment", For: time.Hour, By: "ops@host", Why: "a change of the table"}.Apply(t.Context(), s.bus)
		if err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, soon, func() bool { return consumer.Begins(p.Consumer) == 0 })
		// A process that starts now is paused, and so are its durables.
		late := s.start(config(), counting(&runs), nil)
		bustest.Eventually(t, soon, func() error {
			if consumer.Begins(late.Consumer) != 0 {
				return errors.New("the process that started later is not paused")
			}
			st, err := consumer.Look(t.Context(), s.bus, "payment")
			if err != nil {
				return err
			}
			if len(st.Paused) != 1 || st.Paused[0].Reason != "operator" || !st.Paused[0].Until.Equal(until) || st.Paused[0].Why != "a change of the table" {
				return fmt.Errorf("paused by %+v", st.Paused)
			}
			if len(st.Members) == 1 {
				return errors.New("the other member is not there yet")
			}
			for _, d := range st.Durables {
				if d.Pulls > 0 && d.PausedUntil.IsZero() {
					return fmt.Errorf("durable %s is not paused", d.Name)
				}
			}
			return nil
		})
		for i := range 20 {
			s.publish(draft(fmt.Sprint("paused-", i)))
		}
		if err := p.Health(); err != nil {
			t.Errorf("a paused consumer is unhealthy: %v", err)
		}
		if paused, err := consumer.Resume(t.Context(), s.bus, "payment"); err != nil || !paused {
			t.Fatalf("%v, %v", paused, err)
		}
		bustest.Eventually(t, soon, func() bool { return len(runs.all()) == 21 })
		bustest.Eventually(t, soon, func() bool { return pausedDurables(t, s) == 0 })
		if paused, err := consumer.Resume(t.Context(), s.bus, "payment"); err != nil || paused {
			t.Errorf("resumed twice: %v, %v", paused, err)
		}
	})
}

// What waits is delivered when a pause is ended early, and not only when a pull that was
// there before gets its next heartbeat.
func TestResumedEventsComeAtOnce(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), counting(&runs), nil)
		s.publish(draft("first"))
		bustest.Eventually(t, soon, func() bool { return runs.of("first") == 1 })
		const rounds = 9
		var took []time.Duration
		for round := range rounds {
			if _, err := (consumer.Pause{Consumer: "payment", For: time.Hour, By: "ops@host"}).Apply(t.Context(), s.bus); err != nil {
				t.Fatal(err)
			}
			bustest.Eventually(t, soon, func() bool { return consumer.Begins(p.Consumer) == 0 && pausedDurables(t, s) == 1 })
			id := fmt.Sprint("paused-", round)
			s.publish(draft(id))
			begun := time.Now()
			if _, err := consumer.Resume(t.Context(), s.bus, "payment"); err != nil {
				t.Fatal(err)
			}
			bustest.Eventually(t, soon, func() bool { return runs.of(id) == 1 })
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		if median := took[rounds/2]; median > 1500*time.Millisecond {
			t.Errorf("half of the pauses lasted for %v longer: %v", median, took)
		}
	})
}

func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	eachShared(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), counting(&runs), nil)
		s.publish(draft("first"))
		bustest.Eventually(t, soon, func() bool { return runs.of("first") == 1 })
		begun := time.Now()
		if _, err := (consumer.Pause{Consumer: "payment", For: 2 * time.Second, By: "ops@host"}).Apply(t.Context(), s.bus); err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, soon, func() bool { return consumer.Begins(p.Consumer) == 0 || time.Since(begun) > 2*time.Second })
		s.publish(draft("second"))
		bustest.Eventually(t, soon, func() bool { return runs.of("second") == 1 })
		if took := time.Since(begun); took < 2*time.Second {
			t.Errorf("ran after %v of a pause of 2 s", took)
		}
	})
}

func TestPauseRefuses(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for name, tt := range map[string]struct {
		pause consumer.Pause
		want  error
	}{
		"no such consumer": {consumer.Pause{Consumer: "shipping", For: time.Minute, By: "me"}, consumer.ErrNoDurable},
		"no name":          {consumer.Pause{Consumer: "No Name", For: time.Minute, By: "me"}, event.ErrInvalidConsumer},
		"no time":          {consumer.Pause{Consumer: "payment", By: "me"}, consumer.ErrConfig},
		"nobody":           {consumer.Pause{Consumer: "payment", For: time.Minute}, consumer.ErrConfig},
	} {
		if _, err := tt.pause.Apply(t.Context(), s.bus); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	var runs tally
	s.start(config(), counting(&runs), nil)
	bustest.Eventually(t, soon, func() bool { _, err := s.durable("payment"); return err == nil })
	if err := s.bus.JetStream().DeleteStream(t.Context(), "KV_"+s.bus.Names().Bucket(event.PausesBucket)); err != nil {
		t.Fatal(err)
	}
	_, err := consumer.Pause{Consumer: "payment", For: time.Minute, By: "me"}.Apply(t.Context(), s.bus)
	if !errors.Is(err, bus.ErrNoStream) || !strings.Contains(err.Error(), "topology apply") {
		t.Errorf("without a bucket: %v", err)
	}
}

// A partition that changes its owner takes its durable along: whoever reads the next one
// follows what is stored.
func TestPauseOfADurableThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start(config(), counting(new(tally)), nil)
	bustest.Eventually(t, soon, func() bool { _, err := s.durable("payment"); return err == nil })
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	var gone error
	remove := sync.OnceFunc(func() {
		gone = s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment")
	})
	asking := bustest.Connect(t, bus.Config{Names: s.bus.Names(), InProcess: wiretap.New(bustest.Server(t), func(frame []byte) wiretap.Verdict {
		if strings.Contains(wiretap.Subject(frame), ".API.CONSUMER.PAUSE.") {
			remove()
		}
		return wiretap.Pass
	}, nil)})
	until, err := consumer.Pause{Consumer: "payment", For: time.Hour, By: "ops@host"}.Apply(t.Context(), asking)
	if err != nil || gone != nil {
		t.Fatalf("%v, removed: %v", err, gone)
	}
	if d, err := pauses.New(s.bus).Get(t.Context(), "payment"); err != nil || d.Pause == nil || !d.Pause.Until.Equal(until) {
		t.Errorf("stored is %+v, %v, want a pause until %v", d.Pause, err, until)
	}
}

// What somebody else has paused stays paused.
func TestAForeignPauseIsNotShortened(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var runs tally
	p := s.start(config(), counting(&runs), nil)
	s.publish(draft("first"))
	bustest.Eventually(t, soon, func() bool { return runs.of("first") == 1 })
	js, stream := s.bus.JetStream(), s.bus.Names().EventsStream()
	long := time.Now().Add(time.Hour)
	if _, err := js.PauseConsumer(t.Context(), stream, "payment", long); err != nil {
		t.Fatal(err)
	}
	p.Hold("test", consumer.Hold{PauseUntil: time.Now().Add(time.Minute)})
	p.Release("test")
	// Its own pause, which is longer, is taken back.
	p.Hold("test", consumer.Hold{PauseUntil: time.Now().Add(2 * time.Hour)})
	bustest.Eventually(t, soon, func() bool { return pausedUntil(t, js, stream).After(long) })
	p.Release("test")
	bustest.Eventually(t, soon, func() bool { return pausedUntil(t, js, stream).IsZero() })
}

func pausedUntil(t *testing.T, js jetstream.JetStream, stream string) time.Time {
	t.Helper()
	c, err := js.Consumer(t.Context(), stream, "payment")
	if err != nil {
		t.Fatal(err)
	}
	if info := c.CachedInfo(); info.Paused {
		return *info.Config.PauseUntil
	}
	return time.Time{}
}
