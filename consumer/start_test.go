package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// output is a log that is read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(line)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// handled waits until a process has handled so many events.
func (p *process) handled(n uint64) {
	p.s.tb.Helper()
	bustest.Eventually(p.s.tb, soon, func() error {
		if st := p.Stats(); st.Handled != n {
			return fmt.Errorf("%+v, want %d handled", st, n)
		}
		return nil
	})
}

func TestNewConsumerBeginsNow(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publishN(3)
		tick(s)
		cfg := config()
		cfg.Start.Now = true
		var runs tally
		p := s.start(cfg, counting(&runs), nil)
		bustest.Eventually(t, soon, p.Health)
		s.publish(draft("new-1"))
		p.handled(1)
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		// Where it began is remembered, whatever is said later and whatever is lost.
		if s.open(s.bus).Partitions() == nil {
			if err := s.bus.JetStream().DeleteConsumer(t.Context(), s.bus.Names().EventsStream(), "payment"); err != nil {
				t.Fatal(err)
			}
		}
		again := s.start(config(), counting(&runs), nil)
		s.publish(draft("new-2"))
		again.handled(1)
		s.settled("payment")
		if all := runs.all(); len(all) != 2 {
			t.Errorf("handled %v, want new-1 and new-2", all)
		}
	})
}

// tick waits until the server's clock, as a process knows it, has passed what is stored:
// it is slow by the age of an answer.
func tick(s *system) {
	s.tb.Helper()
	stream, err := s.bus.Stream(s.tb.Context(), s.bus.Names().EventsStream())
	if err != nil {
		s.tb.Fatal(err)
	}
	last := stream.CachedInfo().State.LastTime
	bustest.Eventually(s.tb, soon, func() error {
		now, err := s.bus.Clock(s.bus.Names().EventsStream()).Now(s.tb.Context())
		if err == nil && !now.After(last) {
			err = fmt.Errorf("%v is not after %v", now, last)
		}
		return err
	})
}

func TestNewConsumerBeginsAtATime(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publish(draft("a"), draft("b"), draft("c"))
		meta, err := s.messages(s.bus.Names().EventsStream(), s.storedOn(placed.Type(), "b"))[0].Metadata()
		if err != nil {
			t.Fatal(err)
		}
		cfg := config()
		cfg.Start.Since = meta.Timestamp
		var runs tally
		s.start(cfg, counting(&runs), nil).handled(2)
		s.settled("payment")
		if runs.of("a") != 0 || runs.of("b") != 1 || runs.of("c") != 1 {
			t.Errorf("handled %v, want b and c", runs.all())
		}
	})
}

func TestAddedTypeBeginsWhereItsConsumerDid(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publish(paid.New("o-1", orderData{}), paid.New("o-2", orderData{}))
		tick(s)
		cfg := config()
		cfg.Start.Now = true
		var runs tally
		p := s.start(cfg, counting(&runs), nil)
		bustest.Eventually(t, soon, p.Health)
		s.publish(draft("o-1"), paid.New("o-3", orderData{}))
		p.handled(1)
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		r := counting(&runs)
		consumer.Handle(r, paid, func(_ context.Context, e event.Event, _ orderData) (consumer.Step, error) {
			runs.add("paid " + string(event.PartitionKey(e)))
			return consumer.Step{}, nil
		})
		v2 := s.start(cfg, r, nil)
		v2.handled(1)
		s.publish(paid.New("o-4", orderData{}))
		v2.handled(2)
		s.settled("payment")
		v2.handled(2) // in a database the copy of the catch-up may run, too, and is undone
		if all := runs.all(); len(all) != 3 || runs.of("paid o-3") == 0 || runs.of("paid o-4") == 0 {
			t.Errorf("handled %v, want o-1 and what was paid after the start", all)
		}
	})
}

func TestNewNameSaysHowManyOldEventsItIsGiven(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publishN(3)
		var log output
		cfg := config()
		cfg.Logger = zerolog.New(&log).Level(zerolog.WarnLevel)
		p := s.start(cfg, counting(new(tally)), nil)
		p.handled(3)
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		again := s.start(cfg, counting(new(tally)), nil)
		s.publish(draft("new"))
		again.handled(1)
		if n := strings.Count(log.String(), `"old_events":3,"stored_since":"`+time.Now().UTC().Format("2006")); n != 1 {
			t.Errorf("said %d times that 3 old events come, want once: %s", n, log.String())
		}
	})
}

func TestReadyConsumerSaysWhatItConsumes(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publishN(2)
		var log output
		cfg := config()
		cfg.Logger = zerolog.New(&log)
		p := s.start(cfg, counting(new(tally)), nil)
		p.handled(2)
		if n := strings.Count(log.String(), `"message":"ready, consuming 1 type, 2 waiting"`); n != 1 {
			t.Errorf("said %d times that it is ready: %s", n, log.String())
		}
	})
}

// Whatever a consumer sends until it is ready may stay without an answer, as it does when
// a leader has just gone: it asks again.
func TestConsumerStartsAlthoughAMessageIsLost(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		s.publishTimeout = time.Second
		sent := s.beginsWithout(0)
		if sent == 0 {
			t.Fatal("it has sent nothing until it was ready: the test has not seen its start")
		}
		for n := 1; n <= sent; n++ {
			t.Run(fmt.Sprint("message ", n), func(t *testing.T) {
				t.Parallel()
				lossy := *s
				lossy.tb = t
				lossy.beginsWithout(n)
			})
		}
	})
}

// beginsWithout starts a new consumer whose n-th message gets lost, and returns how many
// it sends until it is ready.
func (s *system) beginsWithout(n int) (sent int) {
	s.tb.Helper()
	cfg := config()
	cfg.Name = event.Consumer(fmt.Sprint("payment-without-", n))
	var starting atomic.Bool
	var count atomic.Int64
	lossy := *s
	lossy.server = wiretap.New(s.server, func(frame []byte) wiretap.Verdict {
		if wiretap.Subject(frame) == "" || !starting.Load() {
			return wiretap.Pass
		}
		if count.Add(1) == int64(n) {
			s.tb.Logf("lost: %.200q", frame)
			return wiretap.Drop
		}
		return wiretap.Pass
	}, nil)
	p := lossy.prepare(cfg, counting(new(tally)), nil)
	starting.Store(true)
	p.run()
	defer func() {
		if err := p.stop(); err != nil {
			s.tb.Errorf("Run: %v", err)
		}
	}()
	bustest.Eventually(s.tb, soon, func() error {
		select {
		case <-p.done:
			s.tb.Fatalf("it ended at its start: %v", p.err)
		default:
		}
		return p.Health()
	})
	starting.Store(false)
	return int(count.Load())
}

func TestConsumerWithoutABusSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := consumer.New(nil, nil, config())
	for _, want := range []string{"payment: the bus is nil", "the registry is nil"} {
		if !errors.Is(err, consumer.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want it to say %q", err, want)
		}
	}
}
