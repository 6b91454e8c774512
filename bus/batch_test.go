package bus_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

func message(b *bus.Bus, key string) *nats.Msg {
	return &nats.Msg{Subject: b.Names().EventSubject("order.placed.v1", event.Key(key)), Header: nats.Header{}, Data: []byte(key)}
}

func sendBatch(t *testing.T, b *bus.Bus, msgs ...*nats.Msg) (bus.Receipt, error) {
	t.Helper()
	p, err := b.SendBatch(t.Context(), msgs)
	if err != nil {
		return bus.Receipt{}, err
	}
	return p.Wait(t.Context())
}

func TestSendBatch(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	var msgs []*nats.Msg
	for i := range bus.MaxBatch {
		msgs = append(msgs, message(b, fmt.Sprint(i)))
	}
	receipt, err := sendBatch(t, b, msgs...)
	if err != nil || receipt.Sequence != bus.MaxBatch {
		t.Fatalf("got %+v, %v", receipt, err)
	}
	// The same messages again, in smaller batches and alone: nothing of the
	// first batch is left in them.
	if receipt, err = sendBatch(t, b, msgs[:2]...); err != nil || receipt.Sequence != bus.MaxBatch+2 {
		t.Fatalf("got %+v, %v", receipt, err)
	}
	if receipt, err = sendBatch(t, b, msgs[1]); err != nil || receipt.Sequence != bus.MaxBatch+3 {
		t.Fatalf("got %+v, %v", receipt, err)
	}
	for _, n := range []int{0, bus.MaxBatch + 1} {
		if _, err := b.SendBatch(t.Context(), make([]*nats.Msg, n)); !errors.Is(err, bus.ErrTooLarge) {
			t.Errorf("batch of %d: got %v, want ErrTooLarge", n, err)
		}
	}
}

// All or nothing, and the error says which kind of wrong it is.
func TestSendBatch_refused(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	known := message(b, "known")
	known.Header.Set(nats.MsgIdHdr, "known")
	if _, err := sendBatch(t, b, known); err != nil {
		t.Fatal(err)
	}
	moved := message(b, "known")
	moved.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	large := message(b, "large")
	large.Data = make([]byte, b.Conn().MaxPayload()-bus.PayloadSize(large)) // fits alone, without the headers of a batch
	for name, c := range map[string]struct {
		guilty *nats.Msg
		want   error
	}{
		"known id":          {known, bus.ErrDuplicate},
		"sequence moved":    {moved, bus.ErrConflict},
		"nobody's subject":  {&nats.Msg{Subject: "nobody"}, bus.ErrIncomplete},
		"larger than taken": {large, bus.ErrTooLarge},
	} {
		_, err := sendBatch(t, b, message(b, "a"), c.guilty, message(b, "z"))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		var at *bus.BatchError
		if errors.As(err, &at) != (c.guilty == large) || at != nil && at.Index != 1 {
			t.Errorf("%s: got %#v", name, at)
		}
	}
	stream, err := b.JetStream().Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d messages stored, want the first only", n)
	}
}

// The client's own encoding counts what it sends.
func TestPayloadSizeIsWhatTheServerCounts(t *testing.T) {
	t.Parallel()
	for _, header := range []nats.Header{nil, {}, {"ce-id": {"1"}, "ce-source": {"/a", "/b"}, "ce-x": {" trimmed\t"}, "Nats-Msg-Id": {""}}} {
		m := &nats.Msg{Subject: "events.order.placed.v1.o-1", Header: header, Data: []byte("0123456789")}
		if got, want := bus.PayloadSize(m), int64(m.Size()-len(m.Subject)); got != want {
			t.Errorf("PayloadSize with headers %v is %d, want %d", header, got, want)
		}
	}
}
