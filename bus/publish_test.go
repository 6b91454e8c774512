package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

type stored struct {
	Total int `json:"total"`
}

var storedOrder = event.Define[stored]("order.placed.v1")

func newEvent(t *testing.T, b *bus.Bus, key event.Key) event.Event {
	t.Helper()
	e, err := b.Seal(storedOrder.New(key, stored{Total: 1}))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// publishTo sends a plain message and waits for its answer.
func publishTo(t *testing.T, b *bus.Bus, m *nats.Msg) error {
	t.Helper()
	p, err := b.Send(t.Context(), m)
	if err == nil {
		_, err = p.Wait(t.Context())
	}
	return err
}

func messages(t *testing.T, b *bus.Bus) uint64 {
	t.Helper()
	s, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func addStream(t *testing.T, b *bus.Bus, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	s, err := b.JetStream().CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := b.JetStream().DeleteStream(context.Background(), cfg.Name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Error(err)
		}
	})
	return s
}

func TestPublishStoresTheEventAsSealed(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	e := newEvent(t, b, "ord/1")
	r, err := b.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if r.Stream != b.Names().EventsStream() || r.Sequence != 1 || r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	s, err := b.JetStream().Stream(t.Context(), r.Stream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(t.Context(), r.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := b.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	if want := b.Names().Stored(sent.Subject, event.DefaultPartitions); m.Subject != want || sent.Subject != b.Names().Root("events.order.placed.v1.ord=2F1") {
		t.Errorf("subject %s, want %s", m.Subject, want)
	}
	if id := m.Header.Get(nats.MsgIdHdr); id != string(event.EventKeyOf(e)) {
		t.Errorf("message id %q", id)
	}
	for name := range sent.Header {
		if !strings.HasPrefix(name, "ce-") && name != nats.MsgIdHdr {
			t.Errorf("unexpected header %s", name)
		}
	}
	got, err := event.Decode(m.Header, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID() != e.ID() || got.Source() != b.Source() || event.PartitionKey(got) != "ord/1" || !got.Time().Equal(e.Time()) {
		t.Errorf("got %s, want %s", got, e)
	}
}

func TestIllegal_types_are_refused_locally_while_a_neighbour_publishes(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	stop, neighbour := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				neighbour <- nil
				return
			default:
			}
			e, err := b.Seal(storedOrder.New("neighbour", stored{}))
			if err == nil {
				_, err = b.Publish(context.Background(), e)
			}
			if err != nil {
				neighbour <- err
				return
			}
		}
	}()
	for _, typ := range []string{
		"order created", "a.*", "a.>", "a..b", ".a", "a\nb", "a\r\nPUB x 0\r\n", "$JS.API.STREAM.DELETE.X", "$KV.x.y",
		"_INBOX.x.y", "ünï", strings.Repeat("a", 2000), "order.placed.v0", "Order.Placed.v1", "",
	} {
		e := newEvent(t, b, "k")
		e.SetType(typ)
		if _, err := b.Publish(t.Context(), e); !errors.Is(err, event.ErrInvalidType) && !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("type %q: %v", typ, err)
		}
		if _, err := b.Seal(event.Draft{Type: event.Type(typ), Key: "k"}); !errors.Is(err, event.ErrInvalidType) {
			t.Errorf("draft of type %q: %v", typ, err)
		}
	}
	for _, key := range []event.Key{"a b", "*", ">", "a.b", "ü", event.Key(strings.Repeat("k", 2000))} {
		m, err := b.Message(newEvent(t, b, key))
		if err != nil {
			t.Errorf("key %q: %v", key, err)
			continue
		}
		if tokens := strings.Split(strings.TrimPrefix(m.Subject, b.Names().Root("")), "."); len(tokens) != 5 {
			t.Errorf("key %q: subject %q", key, m.Subject)
		}
		if err := publishTo(t, b, m); err != nil {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if _, err := b.Seal(storedOrder.New("a\nb", stored{})); !errors.Is(err, event.ErrInvalidEvent) {
		t.Errorf("key with a newline: %v", err)
	}
	for _, subject := range []string{"", "a b", "a\tb", "a\r\nPUB x 0"} {
		if _, err := b.Send(t.Context(), nats.NewMsg(subject)); !errors.Is(err, event.ErrInvalidName) {
			t.Errorf("subject %q: %v", subject, err)
		}
	}
	close(stop)
	if err := <-neighbour; err != nil {
		t.Errorf("the neighbour's publish failed: %v", err)
	}
	if n := b.Conn().Stats().Reconnects; n != 0 || b.Health() != nil {
		t.Errorf("the connection dropped %d times", n)
	}
}

func TestThe_publisher_is_told_which_copies_the_server_recognised(t *testing.T) {
	t.Parallel()
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{Duplicates: 300 * time.Millisecond})
	e := newEvent(t, b, "k")
	var stored, duplicates uint64
	publish := func() bool {
		r, err := b.Publish(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if r.Duplicate {
			duplicates++
			return false
		}
		stored++
		return true
	}
	if !publish() {
		t.Error("the first copy is a duplicate")
	}
	for range 2 { // each time the window has passed, the server stores another copy
		bustest.Eventually(t, time.Minute, publish)
	}
	if n := messages(t, b); n != stored || stored != 3 {
		t.Errorf("%d messages in the stream, %d receipts, want 3", n, stored)
	}
	if duplicates == 0 {
		t.Error("no copy was recognised within the window")
	}
}

func TestIdentity_is_source_and_id(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	for _, id := range [][2]string{{"/shop-a", "1"}, {"/shop-b", "1"}, {"/a", "b/c"}, {"/a/b", "c"}} {
		e := newEvent(t, b, "k")
		e.SetSource(id[0])
		e.SetID(id[1])
		r, err := b.Publish(t.Context(), e)
		if err != nil || r.Duplicate {
			t.Errorf("%v: %+v, %v", id, r, err)
		}
	}
	if n := messages(t, b); n != 4 {
		t.Errorf("%d messages stored, want 4", n)
	}
}

func TestA_publish_whose_ack_is_lost_can_be_repeated(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	proxy := startProxy(t, strings.TrimPrefix(s.URL(), "nats://"))
	names := event.Names{Prefix: bustest.Prefix()}
	direct := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: s.URL(), Names: names}), topology.Config{})
	b := bustest.Connect(t, bus.Config{URL: "nats://" + proxy.addr(), Names: names, PublishTimeout: 500 * time.Millisecond})

	e := newEvent(t, b, "k")
	proxy.mute(true)
	if _, err := b.Publish(t.Context(), e); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("publish without an ack: %v", err)
	}
	if n := messages(t, direct); n != 1 {
		t.Fatalf("%d messages stored, want 1", n)
	}
	proxy.mute(false)
	bustest.Eventually(t, time.Minute, func() error {
		r, err := b.Publish(t.Context(), e)
		if err == nil && (!r.Duplicate || r.Sequence != 1) {
			t.Errorf("receipt of the repeated publish: %+v", r)
		}
		return err
	})
	if n := messages(t, direct); n != 1 {
		t.Errorf("%d messages stored after the repetition, want 1", n)
	}
}

func TestPublishIsBoundedWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: s.URL(), PublishTimeout: 300 * time.Millisecond, MaxPending: 2})
	addStream(t, b, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	s.Stop(t)
	bustest.Eventually(t, time.Minute, func() bool { return b.Health() != nil })
	for range 5 { // more than the window holds
		if err := publishTo(t, b, nats.NewMsg("s")); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	}
	s.Restart(t)
	bustest.Eventually(t, time.Minute, func() error {
		return publishTo(t, b, nats.NewMsg("s"))
	})
}

func TestWaitEndsWithItsContextAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	p, err := b.PublishAsync(t.Context(), newEvent(t, b, "k"))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ended); err != nil && (!errors.Is(err, context.Canceled) || !errors.Is(err, bus.ErrUnavailable)) {
		t.Errorf("wait with an ended context: %v", err)
	}
	for range 2 {
		if r, err := p.Wait(t.Context()); err != nil || r.Sequence != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestSendBlocksWhileTheWindowIsFull(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: s.URL(), MaxPending: 2})
	held := make(chan *nats.Msg, 2)
	if _, err := b.Conn().Subscribe("slow", func(m *nats.Msg) { held <- m }); err != nil {
		t.Fatal(err)
	}
	var inFlight []*bus.Pending
	for range 2 {
		p, err := b.Send(t.Context(), nats.NewMsg("slow"))
		if err != nil {
			t.Fatal(err)
		}
		inFlight = append(inFlight, p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Send(ctx, nats.NewMsg("slow")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("send into a full window: %v", err)
	}

	third := make(chan error, 1)
	go func() {
		_, err := b.Send(t.Context(), nats.NewMsg("slow"))
		third <- err
	}()
	ack, err := json.Marshal(jetstream.PubAck{Stream: "S", Sequence: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := (<-held).Respond(ack); err != nil {
		t.Fatal(err)
	}
	if err := <-third; err != nil {
		t.Errorf("send after a place was given back: %v", err)
	}
	if r, err := inFlight[0].Wait(t.Context()); err != nil || r.Stream != "S" {
		t.Errorf("%+v, %v", r, err)
	}
	for range 2 {
		if err := (<-held).Respond(ack); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	if _, err := b.Conn().Subscribe("silence", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	short := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), PublishTimeout: 200 * time.Millisecond})
	p, err := short.Send(t.Context(), nats.NewMsg("silence"))
	if err != nil {
		t.Fatal(err)
	}
	if err := short.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, bus.ErrClosed) && !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("in flight at close: %v", err)
	}
	if _, err := short.Send(t.Context(), nats.NewMsg("silence")); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("send after close: %v", err)
	}
}

func TestPublishOutlastsAStreamWithoutLeader(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: s.URL()})
	p, err := b.Send(t.Context(), nats.NewMsg("late"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	addStream(t, b, jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late"}})
	if r, err := p.Wait(t.Context()); err != nil || r.Stream != "LATE" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A sender that waits no longer may use its message for something else, also
// while it has not been written yet (the race detector looks on).
func TestAMessageIsTheSendersAgainAfterWait(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	subject := b.Names().Root("events.a.b.v1.k")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for i := range 200 {
				m := nats.NewMsg(subject)
				m.Header.Set("N", "1")
				p, err := b.Send(t.Context(), m)
				if err != nil {
					t.Error(err)
					return
				}
				ctx := t.Context()
				if i%2 == 0 {
					ctx = ended
				}
				if _, err := p.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				m.Header.Set("N", "2")
				m.Data = []byte("changed")
				if _, err := p.Wait(t.Context()); err != nil {
					t.Errorf("waited for again: %v", err)
				}
			}
		})
	}
	senders.Wait()
	s, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	for sequence := range s.CachedInfo().State.LastSeq {
		m, err := s.GetMsg(t.Context(), sequence+1)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("N") != "1" || len(m.Data) != 0 {
			t.Fatalf("message %d was sent as its sender changed it: %v %q", sequence+1, m.Header, m.Data)
		}
	}
	if n := s.CachedInfo().State.LastSeq; n != 8*200 {
		t.Errorf("%d messages stored, want %d", n, 8*200)
	}
}
