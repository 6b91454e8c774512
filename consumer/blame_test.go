package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
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
	"github.com/farandole/farandole/state"
)

// blamed checks that an event alone is parked after as many runs and failures, and
// that the consumer went on with what was behind it, in good health.
func (s *system) blamed(p *process, runs *tally, id, reason string, attempts int, says string) {
	s.tb.Helper()
	bustest.Eventually(s.tb, soon, func() error {
		if len(s.letters()) == 0 {
			return fmt.Errorf("not parked: stats %+v, health %w", p.Stats(), p.Health())
		}
		return nil
	})
	if l := s.letter(); l.Reason != reason {
		s.tb.Errorf("parked as %s, want %s", l.Reason, reason)
	}
	s.settled("payment")
	m := s.mark("payment", event.NewEventKey(s.bus.Source(), id))
	if m.State != "parked" || m.Failures != attempts || len(m.Attempts) != attempts {
		s.tb.Fatalf("the mark is %+v, want it parked after %d failures", m, attempts)
	}
	if last := m.Attempts[attempts-1]; !strings.Contains(last.Error, says) {
		s.tb.Errorf("the last attempt says %q, want %q in it", last.Error, says)
	}
	if n := runs.of(id); n != attempts {
		s.tb.Errorf("the handler ran %d times, want %d", n, attempts)
	}
	if st := p.Stats(); st.Parked != 1 || int(st.Retried) != attempts-1 || st.Handled != 1 {
		s.tb.Errorf("stats = %+v, want one parked after %d attempts, and the follower handled", st, attempts)
	}
	if err := p.Health(); err != nil {
		s.tb.Errorf("trouble with one event is reported as the consumer's: %v", err)
	}
}

// behind is a good event of the same key.
func behind(id string) event.Draft {
	d := draft("good")
	d.Key = event.Key(id)
	return d
}

// A step that the database cannot commit is its event's fault.
func TestSQL_step_that_cannot_be_committed(t *testing.T) {
	t.Parallel()
	late := config()
	late.HandlerTimeout, late.Lease = 300*time.Millisecond, 2*time.Second
	for name, tt := range map[string]struct {
		only string // engine
		cfg  consumer.Config
		work func(ctx context.Context, tx *sql.Tx) error
		says string
	}{
		"overran": {cfg: late, says: "handler timeout", work: func(ctx context.Context, tx *sql.Tx) error {
			<-ctx.Done() // and it goes on nevertheless
			for over := false; !over; {
				_, err := tx.ExecContext(context.WithoutCancel(ctx), "UPDATE effects SET runs = runs")
				over = err != nil
			}
			return nil
		}},
		"constraint at commit": {cfg: config(), work: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO invoices (customer) VALUES ('nobody')")
			return err
		}},
		"aborted": {cfg: config(), only: "Postgres", says: "the handler went on", work: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects (event, runs) VALUES ('bad', 1)")
			if err == nil {
				return fmt.Errorf("the key is not taken")
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, s *system) {
				t.Helper()
				if tt.only != "" && !strings.HasSuffix(t.Name(), tt.only) {
					t.Skip("this database does not abort")
				}
				for _, q := range []string{
					"CREATE TABLE customers (id text PRIMARY KEY)",
					"CREATE TABLE invoices (customer text REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)",
				} {
					if _, err := s.open(s.bus).(*sqlLedger).db.ExecContext(t.Context(), q); err != nil {
						t.Fatal(err)
					}
				}
				var runs tally
				p := s.startWorking(tt.cfg, func(ctx context.Context, tx *sql.Tx, e event.Event) (consumer.Step, error) {
					runs.add(e.ID())
					if e.ID() == "bad" {
						return pay(e), tt.work(ctx, tx)
					}
					return pay(e), nil
				})
				s.publish(draft("bad"), behind("bad"))
				s.blamed(p, &runs, "bad", event.ReasonExhausted, 3, tt.says)
				if all := s.effects().all(); len(all) != 1 || all["good"] != 1 {
					t.Errorf("effects are %v, want the follower's", all)
				}
				wantIdle(t, p)
			})
		})
	}
}

// What a step emits has the attributes of its cause, which may leave no room
// for more: no stream takes more than 64 KiB of headers.
func TestInheritedAttributeThatDoesNotFit(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *system) {
		t.Helper()
		var runs tally
		p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			runs.add(e.ID())
			return pay(e), nil
		}), nil)
		bad, err := s.bus.Seal(draft("bad"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.bus.Message(bad)
		if err != nil {
			t.Fatal(err)
		}
		m.Header["ce-traceparent"] = []string{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
		m.Header["ce-tracestate"] = []string{""}
		room := bus.MaxHeader - int(bus.PayloadSize(m)) + len(m.Data)
		m.Header["ce-tracestate"] = []string{strings.Repeat("x", room)}
		if _, err := s.bus.JetStream().PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		s.publish(behind("bad"))
		s.blamed(p, &runs, "bad", event.ReasonPermanent, 1, "too large")
	})
}

// A stream can take less than its server does.
func TestStepThatTheStreamRefuses(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 5000)
	for name, tt := range map[string]struct {
		kind kind
		step func(s *system, p *process, e event.Event) (consumer.Step, error)
	}{
		"KV, event":         {kvKind, emitLarge(large)},
		"partitions, event": {partitionKind, emitLarge(large)},
		"partitions, document": {partitionKind, func(_ *system, p *process, e event.Event) (consumer.Step, error) {
			docs, err := state.Of[string](p.bus, p.ledger.(*dedup.Partitions), "payment")
			if err != nil {
				return consumer.Step{}, err
			}
			doc, err := docs.Get(t.Context(), event.PartitionKey(e))
			return consumer.Step{State: []state.Change{doc.Put(large)}}, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.kind = tt.kind
			s.limitMessages(4096)
			var runs tally
			var p *process
			p = s.prepare(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				runs.add(e.ID())
				if e.ID() == "bad" {
					return tt.step(s, p, e)
				}
				return pay(e), nil
			}), nil)
			p.run()
			s.publish(draft("bad"), behind("bad"))
			s.blamed(p, &runs, "bad", event.ReasonPermanent, 1, "too large")
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A stream made by hand may lack a subject; that is no outage either.
func TestStepToASubjectWithoutStream(t *testing.T) {
	t.Parallel()
	eachNATS(t, func(t *testing.T, kind kind) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		s.tuneEvents(func(cfg *jetstream.StreamConfig) {
			all := slices.Index(cfg.Subjects, s.bus.Names().EventsFilter())
			cfg.Subjects[all] = s.bus.Names().Root("events.order.>")
		})
		var runs tally
		p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
			if runs.add(e.ID()); e.ID() == "bad" {
				return pay(e), nil
			}
			return consumer.Step{}, nil
		}), nil)
		s.publish(draft("bad"), behind("bad"))
		s.blamed(p, &runs, "bad", event.ReasonExhausted, 3, "")
	})
}

func emitLarge(text string) func(*system, *process, event.Event) (consumer.Step, error) {
	return func(_ *system, _ *process, e event.Event) (consumer.Step, error) {
		d := paid.New(event.PartitionKey(e), orderData{})
		d.Data = []byte(text)
		return consumer.Emit(d), nil
	}
}

// limitMessages sets the event stream's max_msg_size.
func (s *system) limitMessages(size int32) {
	s.tb.Helper()
	s.tuneEvents(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = size })
}

// tuneEvents changes the event stream as an operator may.
func (s *system) tuneEvents(tune func(*jetstream.StreamConfig)) {
	s.tb.Helper()
	js, name := s.bus.JetStream(), s.bus.Names().EventsStream()
	stream, err := js.Stream(s.tb.Context(), name)
	if err != nil {
		s.tb.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	tune(&cfg)
	if _, err := js.UpdateStream(s.tb.Context(), cfg); err != nil {
		s.tb.Fatal(err)
	}
}

// A retry that the stream refuses to bring back later keeps its place, and counts.
func TestRetryThatTheStreamRefuses(t *testing.T) {
	t.Parallel()
	eachNATS(t, func(t *testing.T, kind kind) {
		t.Helper()
		s := newSystem(t)
		s.kind = kind
		d := draft("bad")
		d.Data = []byte(`{"pad": "` + strings.Repeat("x", 4000) + `"}`)
		m, err := s.bus.Message(bustest.Event(t, d))
		if err != nil {
			t.Fatal(err)
		}
		s.limitMessages(int32(bus.PayloadSize(m)) + 64)
		cfg := config()
		cfg.Retry.DeferAfter = time.Second
		p := s.start(cfg, handling(func(context.Context, event.Event) (consumer.Step, error) {
			return consumer.Step{}, consumer.RetryAfter(errFlaky, 2*time.Second)
		}), nil)
		s.publish(d)
		bustest.Eventually(t, soon, func() bool { return p.Stats().Retried > 0 })
		if m := s.mark("payment", event.NewEventKey(s.bus.Source(), "bad")); m.Failures != 1 {
			t.Errorf("the mark is %+v, want one failure", m)
		}
		if err := p.Health(); err != nil {
			t.Error(err)
		}
	})
}

// An event that alone meets an outage is not believed for ever.
func TestOutageOfOneEventAlone(t *testing.T) {
	t.Parallel()
	unanswered := fmt.Errorf("no answer: %w", bus.ErrUnavailable)
	for name, where := range map[string]string{"handler": "handle", "step": "complete"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			var runs tally
			p := s.start(config(), handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
				runs.add(e.ID())
				if where == "handle" && e.ID() == "bad" {
					return consumer.Step{}, unanswered
				}
				return pay(e), nil
			}), func(_ *process, l dedup.Ledger) dedup.Ledger {
				return &silent{Ledger: l, to: event.NewEventKey(s.bus.Source(), "bad"), in: where}
			})
			s.publish(draft("bad"))
			// While it is the only one, it may be an outage.
			unhealthy(t, p)
			n := 0
			bustest.Eventually(t, soon, func() bool {
				s.publish(draft(fmt.Sprint("other-", n)))
				n++
				return p.Stats().Alone == 1
			})
			healthy := 0
			bustest.Eventually(t, soon, func() bool {
				s.publish(draft(fmt.Sprint("other-", n)))
				n++
				if p.Health() == nil {
					healthy++
				}
				return p.Stats().Parked == 1
			})
			if healthy == 0 {
				t.Error("never healthy, although others got through")
			}
			l := s.letter()
			if l.EventID != "bad" || l.Reason != event.ReasonExhausted || l.Failures != 3 || !strings.Contains(l.Error, "others get through") {
				t.Errorf("the letter is of %s, %s after %d failures: %s", l.EventID, l.Reason, l.Failures, l.Error)
			}
			if n := runs.of("bad"); n < 10 {
				t.Errorf("parked after %d runs: an outage was not thought of", n)
			}
			s.settled("payment")
			bustest.Eventually(t, soon, p.Health)
			if n := p.Stats().Alone; n != 0 {
				t.Errorf("%d events are alone, want none any more", n)
			}
		})
	}
}

// silent does not answer to one event.
type silent struct {
	dedup.Ledger
	to event.EventKey
	in string
}

func (l *silent) Complete(ctx context.Context, c *dedup.Claim, out []*nats.Msg) error {
	if l.in == "complete" && c.Request.Key == l.to {
		return fmt.Errorf("no answer: %w", bus.ErrUnavailable)
	}
	return l.Ledger.Complete(ctx, c, out)
}

// A handler that ends its goroutine has failed; its key and its place go on.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cfg := config()
	cfg.Concurrency = 1
	var runs tally
	p := s.start(cfg, handling(func(_ context.Context, e event.Event) (consumer.Step, error) {
		if runs.add(e.ID()); e.ID() == "bad" {
			runtime.Goexit()
		}
		return pay(e), nil
	}), nil)
	s.publish(draft("bad"), behind("bad"))
	s.blamed(p, &runs, "bad", event.ReasonExhausted, 3, "ended its goroutine")
	if l := s.letters(); l[0].Class != "goexit" {
		t.Errorf("its class is %q", l[0].Class)
	}
}
