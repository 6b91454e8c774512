package dedup_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dedup/deduptest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/wiretap"
	"github.com/farandole/farandole/topology"
)

const soon = 60 * time.Second

// tapped is a ledger on a connection of its own, which hooks judge.
func tapped(t *testing.T, b *bus.Bus, sent, received wiretap.Hook) *deduptest.Owner {
	t.Helper()
	tap := wiretap.New(bustest.Server(t), sent, received)
	own := bustest.Connect(t, bus.Config{InProcess: tap, Names: b.Names(), PublishTimeout: 5 * time.Second})
	return newOwner(t, own, 1, dedup.PartitionsConfig{})
}

// dieCompleting is a process that dies when it has sent so many messages of
// the batch that its step consists of.
func dieCompleting(t *testing.T, b *bus.Bus, server *bustest.TestServer, k event.EventKey, out []*nats.Msg, sent int) {
	t.Helper()
	tap := wiretap.New(server, wiretap.Nth(1, wiretap.Cut, batchMessage(sent+1)), nil)
	own := bustest.Connect(t, bus.Config{InProcess: tap, Names: b.Names()})
	l := newOwner(t, own, 1, dedup.PartitionsConfig{})
	mine, died := claim(t, l, handed(k), dedup.Claimed), make(chan error)
	go func() { died <- l.Complete(t.Context(), mine, out) }()
	<-tap.IsCut()
	own.Conn().Close()
	if err := <-died; !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrClosed) {
		t.Fatalf("complete: %v, want the connection to be lost", err)
	}
}

func batchAnswer(frame []byte) bool { return bytes.Contains(frame, []byte(`"batch":"`)) }

func batchCommit(frame []byte) bool { return bytes.Contains(frame, []byte("Nats-Batch-Commit: 1")) }

// batchMessage matches the n-th message of batches.
func batchMessage(n int) func(frame []byte) bool {
	return func(frame []byte) bool {
		return bytes.Contains(frame, fmt.Appendf(nil, "Nats-Batch-Sequence: %d\r\n", n))
	}
}

// step is what the tests complete: events whose names begin with name, and a
// document that nobody else changes.
func step(b *bus.Bus, name string) []*nats.Msg {
	return []*nats.Msg{
		newEvent(b, name+"-1"), newEvent(b, name+"-2"), newEvent(b, name+"-3"),
		dedup.PutDocument(b.Names().StateSubject("payment", event.Key(name)), []byte(name), 0),
	}
}

// wantStep checks that a step is stored whole and once, or not at all.
func wantStep(t *testing.T, b *bus.Bus, name string, want uint64) {
	t.Helper()
	events, documents := subjects(t, b, "events.>"), subjects(t, b, "state.>")
	for i := range 3 {
		if n := events[newEvent(b, fmt.Sprint(name, "-", i+1)).Subject]; n != want {
			t.Errorf("event %d of %s is stored %d times, want %d", i+1, name, n, want)
		}
	}
	if n := documents[b.Names().StateSubject("payment", event.Key(name))]; n != want {
		t.Errorf("the document of %s is stored %d times, want %d", name, n, want)
	}
}

// The answer to a batch gets lost: whether it is stored is read from its last page, and
// a step that is needs no second try.
func TestBatch_answer_lost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent, received wiretap.Hook
		stored         uint64
	}{
		"the answer":                     {received: wiretap.Nth(1, wiretap.Drop, batchAnswer), stored: 1},
		"the answer, and the connection": {received: wiretap.Nth(1, wiretap.Break, batchAnswer), stored: 1},
		"the commit":                     {sent: wiretap.Nth(1, wiretap.Drop, batchCommit)},
		"the commit, and the connection": {sent: wiretap.Nth(1, wiretap.Break, batchCommit)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bustest.NewBus(t)
			l := tapped(t, b, c.sent, c.received)
			mine := claim(t, l, handed(event.NewEventKey("/shop", "1")), dedup.Claimed)
			err := l.Complete(t.Context(), mine, step(b, "a"))
			if stored := err == nil; stored != (c.stored == 1) || err != nil && !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("complete: %v; want success only if the batch is stored (%d)", err, c.stored)
			}
			wantStep(t, b, "a", c.stored)
			bustest.Eventually(t, soon, func() error { return l.Complete(t.Context(), mine, step(b, "a")) })
			wantStep(t, b, "a", 1)
		})
	}
}

// Many steps of several batches whose answers get lost, one after another.
func TestBatch_answers_lost_under_load(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	answers := 0
	l := tapped(t, b, nil, func(frame []byte) wiretap.Verdict {
		if !batchAnswer(frame) {
			return wiretap.Pass
		}
		if answers++; answers%3 == 0 {
			return wiretap.Break
		}
		return wiretap.Pass
	})
	const workers, steps = 8, 6
	complete := func(name string) error {
		mine, err := l.Claim(t.Context(), handed(event.NewEventKey("/shop", name)))
		for deadline := time.Now().Add(soon); mine != nil; {
			err = l.Complete(t.Context(), mine, step(b, name))
			if !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) {
				break
			}
		}
		return err
	}
	for i, err := range all(workers, func(i int) (err error) {
		for n := range steps {
			err = errors.Join(err, complete(fmt.Sprint("s-", i, "-", n)))
		}
		return err
	}) {
		if err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	for i := range workers * steps {
		wantStep(t, b, fmt.Sprint("s-", i/steps, "-", i%steps), 1)
	}
	if answers < 3 {
		t.Fatalf("%d answers, none was lost", answers)
	}
	t.Logf("%d of %d answers lost", answers/3, answers)
}

// A batch is on its way for so long that its owner gives up: the next owner's fence
// keeps it out, or it is stored before, whichever comes first.
func TestBatch_late(t *testing.T) {
	t.Parallel()
	for name, overtaken := range map[string]bool{"arrives first": false, "arrives after another's fence": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bustest.NewBus(t)
			commit := make(chan *nats.Msg, 1)
			l := tapped(t, b, wiretap.Nth(1, wiretap.Drop, func(frame []byte) bool {
				if !batchCommit(frame) {
					return false
				}
				select {
				case commit <- decode(t, frame): // the first one
				default:
				}
				return true
			}), nil)
			k := event.NewEventKey("/shop", "1")
			late := claim(t, l, handed(k), dedup.Claimed)
			if err := l.Complete(t.Context(), late, step(b, "late")); !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("complete: %v, want ErrUnavailable", err)
			}
			next := newOwner(t, b, 1, dedup.PartitionsConfig{})
			var owned *dedup.Claim
			if overtaken {
				owned = claim(t, next, handed(k), dedup.Claimed)
			}
			if _, err := b.Conn().RequestMsgWithContext(t.Context(), <-commit); err != nil {
				t.Fatal(err)
			}
			if overtaken {
				if err := next.Complete(t.Context(), owned, step(b, "next")); err != nil {
					t.Fatal(err)
				}
			} else {
				claim(t, next, handed(k), dedup.Done)
			}
			if err := l.Complete(t.Context(), late, step(b, "late")); !errors.Is(err, dedup.ErrLeaseLost) {
				t.Errorf("complete again: %v, want ErrLeaseLost", err)
			}
			stored := map[bool]uint64{true: 1}
			wantStep(t, b, "late", stored[!overtaken])
			wantStep(t, b, "next", stored[overtaken])
		})
	}
}

// decode makes a frame a message again.
func decode(t *testing.T, frame []byte) *nats.Msg {
	t.Helper()
	line, rest, _ := bytes.Cut(frame, []byte("\r\n"))
	fields := strings.Fields(string(line))
	size, err := strconv.Atoi(fields[len(fields)-2])
	if err != nil || fields[0] != "HPUB" {
		t.Errorf("no message with headers: %q", line)
	}
	header, err := nats.DecodeHeadersMsg(rest[:size])
	if err != nil {
		t.Error(err)
	}
	return &nats.Msg{Subject: fields[1], Header: header, Data: bytes.Clone(rest[size : len(rest)-len("\r\n")])}
}

// A message of a batch gets lost on its way, as when the stream changes its
// leader: the batch is sent again, and stored once.
func TestBatch_incomplete(t *testing.T) {
	t.Parallel()
	for lost := 1; lost < 5; lost++ { // of four messages before the page
		t.Run(fmt.Sprint("message ", lost), func(t *testing.T) {
			t.Parallel()
			b := bustest.NewBus(t)
			drops := 0
			l := tapped(t, b, func(frame []byte) wiretap.Verdict {
				if drops < 2 && batchMessage(lost)(frame) {
					drops++
					return wiretap.Drop
				}
				return wiretap.Pass
			}, nil)
			mine := claim(t, l, handed(event.NewEventKey("/shop", "1")), dedup.Claimed)
			if err := l.Complete(t.Context(), mine, step(b, "a")); err != nil || drops != 2 {
				t.Fatalf("complete: %v after %d incomplete batches", err, drops)
			}
			wantStep(t, b, "a", 1)
		})
	}
}

// A process dies with a batch half sent: nothing of it is stored, others need
// not wait for the server to forget it, and it does forget it.
func TestBatch_half_sent(t *testing.T) {
	t.Parallel()
	srv := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.JetStreamLimits.MaxBatchTimeout = time.Second
	}})
	b := bustest.Connect(t, bus.Config{URL: srv.URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{})
	abandoned, err := b.Conn().SubscribeSync("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED." + b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	for sent := 1; sent < 5; sent++ {
		name := fmt.Sprint("dead-", sent)
		k := event.NewEventKey("/shop", name)
		dieCompleting(t, b, srv, k, step(b, name), sent)
		wantStep(t, b, name, 0)
		next := newOwner(t, b, 1, dedup.PartitionsConfig{})
		if err := next.Complete(t.Context(), claim(t, next, handed(k), dedup.Claimed), step(b, name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		m, err := abandoned.NextMsg(soon)
		if err != nil {
			t.Fatalf("half a batch is not given up: %v", err)
		}
		var advisory struct{ Reason string }
		if err := json.Unmarshal(m.Data, &advisory); err != nil || advisory.Reason != string(server.BatchTimeout) {
			t.Errorf("%s, %v; want a batch whose time is up", m.Data, err)
		}
	}
	for sent := 1; sent < 5; sent++ {
		wantStep(t, b, fmt.Sprint("dead-", sent), 1)
	}
}

// Dead processes can leave as many half batches as the server takes: that holds
// others up, and ends by itself.
func TestBatch_no_room_for_batches(t *testing.T) {
	t.Parallel()
	srv := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.JetStreamLimits.MaxBatchInflightPerStream, o.JetStreamLimits.MaxBatchTimeout = 2, 10*time.Second
	}})
	b := bustest.Connect(t, bus.Config{URL: srv.URL(), Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, b, topology.Config{})
	for i := range 2 {
		name := fmt.Sprint("dead-", i)
		dieCompleting(t, b, srv, event.NewEventKey("/shop", name), step(b, name), 2)
	}
	l := newOwner(t, b, 1, dedup.PartitionsConfig{})
	mine := claim(t, l, handed(event.NewEventKey("/shop", "live")), dedup.Claimed)
	held := 0
	bustest.Eventually(t, soon, func() error {
		err := l.Complete(t.Context(), mine, step(b, "live"))
		if err != nil {
			held++
		}
		return err
	})
	if held == 0 {
		t.Error("nothing was held up: the test has not filled the server")
	}
	wantStep(t, b, "live", 1)
	wantStep(t, b, "dead-0", 0)
}
