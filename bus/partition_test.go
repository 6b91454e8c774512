package bus_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

// A publisher knows nothing of partitions: the server compares the last sequence of
// the subject on which it stores, in a batch as well, and recognises a message id.
func TestPublisherOfASubjectWithoutPartition(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	at := func(id string, last uint64) *nats.Msg {
		m := message(b, "ord-1")
		m.Header.Set(nats.MsgIdHdr, id)
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
		return m
	}
	if err := publishTo(t, b, at("a", 0)); err != nil {
		t.Fatal(err)
	}
	if err := publishTo(t, b, at("b", 0)); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("another first event: %v, want a conflict", err)
	}
	if _, err := sendBatch(t, b, message(b, "ord-2"), at("c", 0)); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("another first event, in a batch: %v, want a conflict", err)
	}
	if _, err := sendBatch(t, b, message(b, "ord-2"), at("d", 1)); err != nil {
		t.Error(err)
	}
	p, err := b.Send(t.Context(), at("a", 3))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || !r.Duplicate || r.Sequence != 1 {
		t.Errorf("the same id: %+v, %v", r, err)
	}
	if m, err := b.Latest(t.Context(), b.Names().EventsStream(), b.Names().Stored(message(b, "ord-1").Subject, event.DefaultPartitions)); err != nil || m == nil || m.Sequence != 3 {
		t.Errorf("the last event is %+v, %v", m, err)
	}
}
