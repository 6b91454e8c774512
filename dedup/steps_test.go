package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
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

func TestPartitions(t *testing.T) {
	t.Parallel()
	shared := bustest.NewBus(t)
	var partitions atomic.Int64 // each test has one
	deduptest.Run(t, func(t *testing.T, retention time.Duration) deduptest.Backend {
		t.Helper()
		b, partition := shared, int(partitions.Add(1))
		if retention < time.Hour {
			b = bustest.NewBus(t)
		}
		return deduptest.Backend{
			Open: func() deduptest.Ledger {
				l := newOwner(t, b, partition, dedup.PartitionsConfig{Retention: retention})
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error)
				go func() { ended <- l.Run(ctx) }()
				t.Cleanup(func() {
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
				})
				return l
			},
			Names:  b.Names(),
			Stored: func(subject string) int { return stored(t, b, subject) },
			Marks: func() int {
				marks := subjects(t, b, "ledger.>")
				maps.DeleteFunc(marks, func(subject string, _ uint64) bool { return strings.HasSuffix(subject, ".page") })
				return len(marks)
			},
			Owned: true,
			Pass:  func(d time.Duration) { <-time.After(d) },
		}
	})
}

// newOwner is a process with a partition.
func newOwner(tb testing.TB, b *bus.Bus, partition int, cfg dedup.PartitionsConfig) *deduptest.Owner {
	tb.Helper()
	l, err := dedup.NewPartitions(b, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return deduptest.NewOwner(l, partition)
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

// Many steps at once share batches, and each comes out on its own: those that cannot be
// stored and those of a partition that is lost do not drag the others along.
func TestGroup_finds_the_guilty(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	sh := shop{t, b, l}
	lost, kept := sh.takeOf(7, "a"), sh.takeOf(8, "a")
	sh.takeOf(7, "b")
	const n = 300
	claims := make([]*dedup.Claim, n)
	for i := range claims {
		of := kept
		if i%3 == 0 {
			of = lost
		}
		claims[i] = sh.want(of, i, uint64(i+1), dedup.Claimed)
	}
	errs := all(n, func(i int) error {
		out := []*nats.Msg{newEvent(b, fmt.Sprint(i))}
		if i == 7 {
			out = append(out, &nats.Msg{Subject: "nobody-stores-this"})
		}
		if i == 8 {
			out[0].Data = make([]byte, b.Conn().MaxPayload())
		}
		return l.Complete(t.Context(), claims[i], out)
	})
	for i, err := range errs {
		want := error(nil)
		switch {
		case i%3 == 0:
			want = dedup.ErrLeaseLost
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

// A page of many events is larger than the stream takes: it is made of fewer.
func TestGroup_page_larger_than_the_stream_takes(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = 1 << 10 // about 40 keys
	if _, err := b.JetStream().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	l, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	sh := shop{t, b, l}
	large, small := sh.takeOf(7, "a"), sh.takeOf(8, "a") // the server tells what is wrong with the last page only
	const n = 300
	claims := make([]*dedup.Claim, n)
	for i := range claims {
		of := large
		if i%10 == 9 {
			of = small
		}
		claims[i] = sh.want(of, i, uint64(i+1), dedup.Claimed)
	}
	for i, err := range all(n, func(i int) error { return l.Complete(t.Context(), claims[i], nil) }) {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
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

// An owner that goes on when its partition is another's finds out about all its steps at
// once. The server refuses its batches for the message ids in them; were the steps
// told apart by halving batches, there would be a page for each step.
func TestGroup_steps_taken_within_the_duplicate_window(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	zombie, owner := newOwner(t, b, 1, dedup.PartitionsConfig{}), newOwner(t, b, 1, dedup.PartitionsConfig{})
	const n = 128
	var claims [n]*dedup.Claim
	for i := range claims {
		claims[i] = claim(t, zombie, handed(keyOf(i)), dedup.Claimed)
	}
	for i := range claims {
		c := claim(t, owner, handed(keyOf(i)), dedup.Claimed)
		if err := owner.Complete(t.Context(), c, []*nats.Msg{newEvent(b, fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := b.Conn().SubscribeSync(b.Names().Root("ledger.*.*.page"))
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range all(n, func(i int) error {
		for deadline := time.Now().Add(soon); ; {
			err := zombie.Complete(t.Context(), claims[i], []*nats.Msg{newEvent(b, fmt.Sprint(i))})
			if !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) {
				return err // else the machine is slow
			}
		}
	}) {
		if !errors.Is(err, dedup.ErrLeaseLost) {
			t.Errorf("step %d: got %v, want ErrLeaseLost", i, err)
		}
	}
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	if sent, _, err := pages.Pending(); err != nil || sent == 0 || sent > n/8 {
		t.Errorf("%d pages were sent for %d steps, %v; want a few", sent, n, err)
	}
	if got := len(subjects(t, b, "events.>")); got != n {
		t.Errorf("%d events stored, want %d", got, n)
	}
}

// An event that is in the stream already, from before the ledger was changed,
// does not keep its step from being committed, nor its neighbours.
func TestGroup_known_message_id(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newOwner(t, b, 1, dedup.PartitionsConfig{})
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
func TestPartitions_Prepare(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		"as it should be": {func(*jetstream.StreamConfig) {}, ""},
		"no batches":      {func(s *jetstream.StreamConfig) { s.AllowAtomicPublish = false }, "atomic batches: run `farandole topology apply`"},
		"bounded":         {func(s *jetstream.StreamConfig) { s.MaxBytes = 1 << 30 }, "marks among them"},
		"short-lived":     {func(s *jetstream.StreamConfig) { s.MaxAge = time.Hour }, "before the Retention of 24h0m0s"},
		"no partitions":   {func(s *jetstream.StreamConfig) { s.SubjectTransform = nil }, "does not store events by partition"},
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
			err = newOwner(t, b, 1, dedup.PartitionsConfig{}).Prepare(t.Context(), time.Minute)
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (!errors.Is(err, dedup.ErrNoStream) || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	b := bustest.NewBus(t)
	l := newOwner(t, b, 1, dedup.PartitionsConfig{Retention: time.Minute})
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
func TestPartitions_timers_of_one_name(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newOwner(t, b, 1, dedup.PartitionsConfig{})
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
