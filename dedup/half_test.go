package dedup_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

const (
	storeLimit = 4 << 20
	// piece is the size of what the tests store.
	piece = 7000
	// wideStep is how many messages its batch has.
	wideStep = 20
)

// narrow is a system on a server of its own whose storage ends in the middle of
// the next wide step.
type narrow struct {
	*testing.T
	server *bustest.TestServer
	bus    *bus.Bus
	filler jetstream.Stream
	limit  int64 // of what the server stores, once it starts again
}

func newNarrow(t *testing.T) *narrow {
	t.Helper()
	n := &narrow{T: t, limit: storeLimit}
	n.server = bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) { o.JetStreamMaxStore = n.limit }})
	n.bus = n.connect(event.Names{Prefix: bustest.Prefix()})
	bustest.Provision(t, n.bus, topology.Config{})
	return n
}

func (n *narrow) connect(names event.Names) *bus.Bus {
	n.Helper()
	return bustest.Connect(n, bus.Config{URL: n.server.URL(), Names: names, PublishTimeout: 500 * time.Millisecond})
}

// fill leaves room for less than half of a wide step.
func (n *narrow) fill() {
	n.Helper()
	js := n.bus.JetStream()
	var err error
	if n.filler, err = js.CreateStream(n.Context(), jetstream.StreamConfig{Name: "filler", Subjects: []string{"filler"}}); err != nil {
		n.Fatal(err)
	}
	for {
		info, err := js.AccountInfo(n.Context())
		if err != nil {
			n.Fatal(err)
		}
		if info.Store+wideStep*piece*2/5 > storeLimit {
			return
		}
		if _, err := js.Publish(n.Context(), "filler", make([]byte, piece)); err != nil {
			n.Fatal(err)
		}
	}
}

// wide is a step of three documents and many events.
func (n *narrow) wide() []*nats.Msg {
	var out []*nats.Msg
	for i := range wideStep - 1 {
		m := newEvent(n.bus, fmt.Sprint("wide-", i))
		if i < 3 {
			m = dedup.PutDocument(n.document(i), nil, 0)
		}
		m.Data = fmt.Append(nil, `"`, strings.Repeat("x", piece), `"`)
		out = append(out, m)
	}
	return out
}

func (n *narrow) document(i int) string {
	return n.bus.Names().StateSubject("payment", event.Key(fmt.Sprint("wide-", i)))
}

// stored counts the messages of the wide step.
func (n *narrow) stored() (count uint64) {
	n.Helper()
	for _, filter := range []string{"events.>", "state.>", "ledger.payment.*.page"} {
		for _, c := range subjects(n, n.bus, filter) {
			count += c
		}
	}
	return count
}

// halve completes the wide step, until the server has stored half of it.
func (n *narrow) halve(l *deduptest.Owner) (ended chan error) {
	n.Helper()
	mine := claim(n, l, handed(event.NewEventKey("/shop", "wide")), dedup.Claimed)
	n.fill()
	ended = make(chan error, 1)
	go func() { ended <- l.Complete(n.Context(), mine, n.wide()) }()
	bustest.Eventually(n, soon, func() bool {
		select {
		case err := <-ended:
			n.Fatalf("complete: %v, with %d of %d messages stored", err, n.stored(), wideStep)
		default:
		}
		return errors.Is(l.Health(), dedup.ErrHalfStored)
	})
	if s := n.stored(); s < 4 || s > wideStep {
		n.Fatalf("%d of %d messages are stored, want half a batch", s, wideStep)
	}
	return ended
}

// The storage ends in the middle of a batch. The process that sent it keeps the
// rest, says so, and stores it when there is room.
func TestHalf_is_finished_by_its_process(t *testing.T) {
	t.Parallel()
	n := newNarrow(t)
	l := newOwner(t, n.bus, 1, dedup.PartitionsConfig{})
	ended := n.halve(l)
	if err := l.Health(); !strings.Contains(err.Error(), n.bus.Names().EventsStream()) || !strings.Contains(err.Error(), " of 20 messages of batch ") {
		t.Errorf("health says %v, want stream, batch and how much", err)
	}
	other := newOwner(t, n.connect(n.bus.Names()), 1, dedup.PartitionsConfig{})
	if _, err := other.Document(t.Context(), n.document(0)); !errors.Is(err, dedup.ErrHalfStored) || !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("another process reads a document of the half: %v, want ErrHalfStored", err)
	}
	if err := n.filler.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if s := n.stored(); s != wideStep+1 { // and the fence
		t.Errorf("%d messages are stored, want %d", s, wideStep+1)
	}
	if err := l.Health(); err != nil {
		t.Error(err)
	}
	for i := range 3 {
		mine, err := l.Document(t.Context(), n.document(i))
		theirs, err2 := other.Document(t.Context(), n.document(i))
		if err != nil || err2 != nil || !mine.Exists || mine.Version != theirs.Version {
			t.Errorf("document %d: %v, %v; %d here, %d there", i, err, err2, mine.Version, theirs.Version)
		}
	}
	claim(t, other, handed(event.NewEventKey("/shop", "wide")), dedup.Done)
}

// A batch is stored whole, its answer is lost, and the copy of the stream that is
// asked for its mark does not answer: the leader knows.
func TestHalf_is_not_a_whole_batch(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	read := func(frame []byte) bool { return bytes.Contains(frame, []byte(".DIRECT.GET.")) }
	tap := wiretap.New(bustest.Server(t), wiretap.Nth(1, wiretap.Drop, read), wiretap.Nth(1, wiretap.Drop, batchAnswer))
	l := newOwner(t, bustest.Connect(t, bus.Config{InProcess: tap, Names: b.Names(), PublishTimeout: 200 * time.Millisecond}), 1, dedup.PartitionsConfig{})
	mine := claim(t, l, handed(event.NewEventKey("/shop", "1")), dedup.Claimed)
	if err := errors.Join(l.Complete(t.Context(), mine, step(b, "a")), l.Health()); err != nil {
		t.Fatal(err)
	}
	wantStep(t, b, "a", 1)
}

// The process dies as well: nothing is made of the half, by nobody, until the
// server has been given room and restarted, which finishes the batch.
func TestHalf_outlives_its_process(t *testing.T) {
	t.Parallel()
	n := newNarrow(t)
	own := n.connect(n.bus.Names())
	ended := n.halve(newOwner(t, own, 1, dedup.PartitionsConfig{}))
	own.Conn().Close()
	if err := <-ended; err == nil {
		t.Fatal("completed without a connection")
	}
	l := newOwner(t, n.bus, 1, dedup.PartitionsConfig{})
	_, err := l.Document(t.Context(), n.document(0))
	if !errors.Is(err, dedup.ErrHalfStored) || !strings.Contains(err.Error(), n.document(0)) {
		t.Fatalf("reads %v, want ErrHalfStored and the document's name", err)
	}
	n.limit *= 2
	n.server.Restart(t)
	bustest.Eventually(t, soon, n.bus.Health)
	bustest.Eventually(t, soon, func() error {
		_, err := l.Document(t.Context(), n.document(0))
		return err
	})
	if s := n.stored(); s != wideStep+1 { // and the fence
		t.Errorf("%d messages are stored, want %d", s, wideStep+1)
	}
}
