package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
)

func TestStream(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]bool{"claims": true, "claimless": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deduptest.Run(t, streamFactory(t, claims))
		})
	}
}

func TestStream_model(t *testing.T) {
	t.Parallel()
	deduptest.RunModel(t, streamFactory(t, false), false)
}

// streamFactory gives tests whose marks do not end the same stream.
func streamFactory(tb testing.TB, claims bool) deduptest.Factory {
	tb.Helper()
	shared := bustest.NewBus(tb)
	return func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		b := shared
		if retention < time.Hour {
			b = bustest.NewBus(t)
		}
		return deduptest.Backend{
			Open: func() deduptest.Ledger {
				return newStream(t, b, dedup.StreamConfig{Retention: retention, Claims: claims})
			},
			Names:  b.Names(),
			Stored: func(subject string) int { return stored(t, b, subject) },
			Marks:  func() int { return len(subjects(t, b, "ledger.>")) },
			Pass:   func(d time.Duration) { <-time.After(d) },
		}
	}
}

func newStream(tb testing.TB, b *bus.Bus, cfg dedup.StreamConfig) *dedup.Stream {
	tb.Helper()
	l, err := dedup.NewStream(b, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// subjects counts the event stream's messages by subject.
func subjects(tb testing.TB, b *bus.Bus, filter string) map[string]uint64 {
	tb.Helper()
	return subjectsOf(tb, b, b.Names().EventsStream(), filter)
}

// subjectsOf counts what a stream has, by the subject on which it was published.
func subjectsOf(tb testing.TB, b *bus.Bus, name, filter string) map[string]uint64 {
	tb.Helper()
	stream, err := b.JetStream().Stream(tb.Context(), name)
	if err != nil {
		tb.Fatal(err)
	}
	info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(b.Names().Root(filter)))
	if err != nil {
		tb.Fatal(err)
	}
	counts := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		counts[b.Names().Published(subject)] += n
	}
	return counts
}

// handed is a first delivery.
func handed(k event.EventKey) dedup.Request {
	return dedup.Request{Consumer: "payment", Key: k, Lease: time.Minute}
}

func claim(tb testing.TB, l dedup.Ledger, r dedup.Request, want dedup.Status) *dedup.Claim {
	tb.Helper()
	c, err := l.Claim(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	if c.Status != want {
		tb.Fatalf("claim of %s: got %v, want %v", r.Key, c.Status, want)
	}
	return c
}

func newEvent(b *bus.Bus, id string) *nats.Msg {
	return &nats.Msg{
		Subject: b.Names().EventSubject("payment.captured.v1", event.Key(id)),
		Header:  nats.Header{nats.MsgIdHdr: {id}}, Data: []byte(id),
	}
}

// Without claims nothing is written before the step; then everything is, once.
func TestStream_claimless(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	first, second := newStream(t, b, dedup.StreamConfig{}), newStream(t, b, dedup.StreamConfig{})
	k := event.NewEventKey("/shop", "1")
	one, two := claim(t, first, handed(k), dedup.Claimed), claim(t, second, handed(k), dedup.Claimed)
	if err := first.Extend(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if n := len(subjects(t, b, ">")); n != 0 {
		t.Fatalf("%d subjects written by claims", n)
	}
	if err := first.Complete(t.Context(), one, []*nats.Msg{newEvent(b, "1")}); err != nil {
		t.Fatal(err)
	}
	if err := first.Complete(t.Context(), one, []*nats.Msg{newEvent(b, "1")}); err != nil {
		t.Fatalf("again: %v", err)
	}
	late := newEvent(b, "late")
	for what, err := range map[string]error{
		"complete": second.Complete(t.Context(), two, []*nats.Msg{late}),
		"release":  second.Release(t.Context(), claimLate(t, second, k), &event.Attempt{Number: 1, Error: "x"}, nil),
		"park":     second.Park(t.Context(), claimLate(t, second, k), nil, &nats.Msg{Subject: b.Names().DeadLetterSubject("payment", event.ReasonPermanent, k)}),
	} {
		if !errors.Is(err, dedup.ErrSettled) {
			t.Errorf("%s after another worker's step: got %v, want ErrSettled", what, err)
		}
	}
	if got := subjects(t, b, "events.>"); len(got) != 1 || got[newEvent(b, "1").Subject] != 1 {
		t.Fatalf("events stored: %v", got)
	}
	if n := stored(t, b, b.Names().DeadLetterSubject("payment", event.ReasonPermanent, k)); n != 0 {
		t.Fatal("a letter of an event that is done")
	}
	claim(t, second, dedup.Request{Consumer: "payment", Key: k, Lease: time.Minute, Redelivered: true}, dedup.Done)
}

// claimLate is a claim by a ledger that has not heard of the event.
func claimLate(tb testing.TB, l *dedup.Stream, k event.EventKey) *dedup.Claim {
	tb.Helper()
	return claim(tb, l, handed(k), dedup.Claimed)
}

// Giving an event back unspent leaves no mark; a failed attempt does.
func TestStream_claimless_release(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l, k := newStream(t, b, dedup.StreamConfig{}), event.NewEventKey("/shop", "1")
	if err := l.Release(t.Context(), claim(t, l, handed(k), dedup.Claimed), nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(subjects(t, b, "ledger.>")); n != 0 {
		t.Fatalf("%d marks after a release unspent", n)
	}
	c := claim(t, l, handed(k), dedup.Claimed)
	if err := l.Release(t.Context(), c, &event.Attempt{Number: 1, Error: "once"}, newEvent(b, "later")); err != nil {
		t.Fatal(err)
	}
	again := handed(k)
	again.Redelivered = true
	if c = claim(t, l, again, dedup.Claimed); c.Failures != 1 || c.Crashes != 0 {
		t.Fatalf("claim after a failure: %d failures, %d crashes", c.Failures, c.Crashes)
	}
	if subjects(t, b, "events.>")[newEvent(b, "later").Subject] != 1 {
		t.Fatal("what brings the event back is not stored")
	}
}

// Many steps at once share batches, and each comes out on its own: done ones
// are told apart from new ones, whose events are stored.
func TestStream_group_finds_the_guilty(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	mine, theirs := newStream(t, b, dedup.StreamConfig{}), newStream(t, b, dedup.StreamConfig{})
	const n = 300
	claims := make([]*dedup.Claim, n)
	for i := range claims {
		k := event.NewEventKey("/shop", fmt.Sprint(i))
		claims[i] = claim(t, mine, handed(k), dedup.Claimed)
		if i%3 == 0 {
			c := claim(t, theirs, handed(k), dedup.Claimed)
			if err := theirs.Complete(t.Context(), c, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	errs := all(n, func(i int) error {
		out := []*nats.Msg{newEvent(b, fmt.Sprint(i))}
		if i == 7 {
			out = append(out, &nats.Msg{Subject: "nobody-stores-this"})
		}
		if i == 8 {
			out[0].Data = make([]byte, b.Conn().MaxPayload())
		}
		return mine.Complete(t.Context(), claims[i], out)
	})
	for i, err := range errs {
		want := error(nil)
		switch {
		case i%3 == 0:
			want = dedup.ErrSettled
		case i == 8:
			want = bus.ErrTooLarge
		case i == 7:
			want = bus.ErrRefused // the server says no more than "incomplete"
		}
		if !errors.Is(err, want) {
			t.Errorf("step %d: got %v, want %v", i, err, want)
		}
	}
	if got := len(subjects(t, b, "events.>")); got != 2*n/3-2 {
		t.Errorf("%d events stored, want %d", got, 2*n/3-2)
	}
}

// all runs n calls at once and returns their errors.
func all(n int, call func(i int) error) []error {
	errs := make([]error, n)
	done := make(chan struct{})
	for i := range n {
		go func() {
			errs[i] = call(i)
			done <- struct{}{}
		}()
	}
	for range n {
		<-done
	}
	return errs
}

// A process that is handed events which others have just handled, as after a
// reset of its durable, finds out about all of them at once. The server refuses
// each of its batches for the message ids in it; were they told apart by
// halving batches, a mark would be sent once for each size.
func TestStream_steps_taken_within_the_duplicate_window(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	mine, theirs := newStream(t, b, dedup.StreamConfig{}), newStream(t, b, dedup.StreamConfig{})
	if err := mine.Prepare(t.Context(), time.Minute); err != nil { // as a consumer does
		t.Fatal(err)
	}
	const n = 128
	complete := func(l *dedup.Stream) []error {
		return all(n, func(i int) error {
			c, err := l.Claim(t.Context(), handed(event.NewEventKey("/shop", fmt.Sprint(i))))
			for deadline := time.Now().Add(soon); c != nil; {
				err = l.Complete(t.Context(), c, []*nats.Msg{newEvent(b, fmt.Sprint(i))})
				if !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) {
					break // else the machine is slow
				}
			}
			return err
		})
	}
	if err := errors.Join(complete(theirs)...); err != nil {
		t.Fatal(err)
	}
	marks, err := b.Conn().SubscribeSync(b.Names().Root("ledger.>"))
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range complete(mine) {
		if !errors.Is(err, dedup.ErrSettled) {
			t.Errorf("step %d: got %v, want ErrSettled", i, err)
		}
	}
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	if sent, _, err := marks.Pending(); err != nil || sent < n || sent > 3*n {
		t.Errorf("%d marks were sent for %d steps, %v; want each about once", sent, n, err)
	}
	if got := len(subjects(t, b, "events.>")); got != n {
		t.Errorf("%d events stored, want %d", got, n)
	}
}

// An event that is in the stream already, from before the ledger was changed,
// does not keep its step from being committed, nor its neighbours.
func TestStream_known_message_id(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newStream(t, b, dedup.StreamConfig{})
	if _, err := send(t.Context(), b, newEvent(b, "3")); err != nil {
		t.Fatal(err)
	}
	claims := make([]*dedup.Claim, 10)
	for i := range claims {
		claims[i] = claim(t, l, handed(event.NewEventKey("/shop", fmt.Sprint(i))), dedup.Claimed)
	}
	for i, err := range all(len(claims), func(i int) error {
		return l.Complete(t.Context(), claims[i], []*nats.Msg{newEvent(b, fmt.Sprint(i))})
	}) {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	got := subjects(t, b, "events.>")
	if len(got) != 10 || got[newEvent(b, "3").Subject] != 2 || got[newEvent(b, "4").Subject] != 1 {
		t.Errorf("events stored: %v", got)
	}
}

func send(ctx context.Context, b *bus.Bus, m *nats.Msg) (bus.Receipt, error) {
	p, err := b.Send(ctx, m)
	if err != nil {
		return bus.Receipt{}, err
	}
	return p.Wait(ctx)
}

// A stream or server that cannot keep the promise is refused at the start, and
// the error says what to do.
func TestStream_Prepare(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		"as it should be": {func(*jetstream.StreamConfig) {}, ""},
		"no batches":      {func(s *jetstream.StreamConfig) { s.AllowAtomicPublish = false }, "atomic batches: run `farandole topology apply`"},
		"bounded":         {func(s *jetstream.StreamConfig) { s.MaxBytes = 1 << 30 }, "marks among them"},
		"short-lived":     {func(s *jetstream.StreamConfig) { s.MaxAge = time.Hour }, "before the Retention of 24h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bustest.NewBus(t)
			stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			c.change(&cfg)
			if _, err := b.JetStream().UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			err = newStream(t, b, dedup.StreamConfig{}).Prepare(t.Context(), time.Minute)
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (!errors.Is(err, dedup.ErrNoStream) || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	b := bustest.NewBus(t)
	l := newStream(t, b, dedup.StreamConfig{Retention: time.Minute})
	if err := l.Prepare(t.Context(), time.Hour); !errors.Is(err, dedup.ErrConfig) {
		t.Errorf("retention below the horizon: got %v, want ErrConfig", err)
	}
	if err := b.JetStream().DeleteStream(t.Context(), b.Names().EventsStream()); err != nil {
		t.Fatal(err)
	}
	if err := l.Prepare(t.Context(), time.Second); !errors.Is(err, dedup.ErrNoStream) {
		t.Errorf("without the stream: got %v, want ErrNoStream", err)
	}
}

// Steps that set the same timer leave one, and none is held against its neighbours.
func TestStream_timers_of_one_name(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newStream(t, b, dedup.StreamConfig{})
	claims := make([]*dedup.Claim, 20)
	for i := range claims {
		claims[i] = claim(t, l, handed(event.NewEventKey("/shop", fmt.Sprint(i))), dedup.Claimed)
	}
	subject := b.Names().TimerSubject("payment", "deadline", "order")
	for i, err := range all(len(claims), func(i int) error {
		return l.Complete(t.Context(), claims[i], []*nats.Msg{newEvent(b, fmt.Sprint(i)), {
			Subject: subject,
			Header: nats.Header{
				jetstream.ScheduleHeader:       {event.ScheduleAt(time.Now().Add(time.Hour))},
				jetstream.ScheduleTargetHeader: {b.Names().DueSubject(newEvent(b, "due").Subject)},
			},
		}})
	}) {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if got := subjectsOf(t, b, b.Names().TimersStream(), "timer.>"); len(got) != 1 || got[subject] != 1 {
		t.Errorf("timers: %v", got)
	}
	if got := subjects(t, b, "events.>"); len(got) != len(claims) {
		t.Errorf("%d events stored", len(got))
	}
}
