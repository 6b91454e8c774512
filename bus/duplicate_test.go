package bus_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// draftOf is an order's event with this id and data.
func draftOf(t *testing.T, b *bus.Bus, typ event.Type, id, data string) event.Event {
	t.Helper()
	e, err := b.Seal(event.Draft{Type: typ, Key: "ord-1", ID: id, ContentType: event.ContentTypeJSON, Data: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDuplicateIsTheSameEventOrAnError(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	publish := func(typ event.Type, id, data string) (bus.Receipt, error) {
		return b.Publish(t.Context(), draftOf(t, b, typ, id, data))
	}
	first, err := publish("order.placed.v1", "1", `{"a":1,"b":2}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{`{"a":1,"b":2}`, `{ "b": 2, "a": 1 }`} {
		if r, err := publish("order.placed.v1", "1", data); err != nil || !r.Duplicate || r.Sequence != first.Sequence {
			t.Errorf("%s: %+v, %v", data, r, err)
		}
	}
	if r, err := publish("order.placed.v1", "1", `{"a":1}`); !errors.Is(err, bus.ErrIDTaken) || !strings.Contains(err.Error(), "there 13 bytes") || r.Duplicate {
		t.Errorf("other data: %+v, %v", r, err)
	}
	r, err := publish("order.cancelled.v1", "1", `{"a":1,"b":2}`)
	if !errors.Is(err, bus.ErrIDTaken) || !strings.Contains(err.Error(), "order.placed") || !strings.Contains(err.Error(), "order.cancelled") || r.Duplicate {
		t.Errorf("another type: %+v, %v", r, err)
	}
	if n := messages(t, b); n != 1 {
		t.Errorf("%d messages are stored", n)
	}
}

// Ids are stream-wide and can be computed: whoever publishes one first must not
// suppress the event without a sound.
func TestDuplicateOfAForgedID(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	e := draftOf(t, b, "order.placed.v1", "1", `{}`)
	m, err := b.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	forged := &nats.Msg{Subject: m.Subject, Header: nats.Header{nats.MsgIdHdr: m.Header[nats.MsgIdHdr]}, Data: []byte("{}")}
	if err := publishTo(t, b, forged); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); !errors.Is(err, bus.ErrIDTaken) {
		t.Errorf("Publish: %v", err)
	}
	if err := publishTo(t, b, m); !errors.Is(err, bus.ErrIDTaken) {
		t.Errorf("Send: %v", err)
	}
}

// What is sent with other data each time, as a handler's that runs again, is
// the same event all the same.
func TestDuplicateOfAnEventThatIsSentWithOtherData(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	for i, data := range []string{"1", "2"} {
		m, err := b.Message(draftOf(t, b, "order.placed.v1", "1", data))
		if err != nil {
			t.Fatal(err)
		}
		p, err := b.Send(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(t.Context()); err != nil || r.Duplicate != (i == 1) {
			t.Errorf("%s: %+v, %v", data, r, err)
		}
	}
}

func TestDuplicateOfAnEventThatIsGone(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	e := draftOf(t, b, "order.placed.v1", "1", "{}")
	r, err := b.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.JetStream().Stream(t.Context(), r.Stream)
	if err == nil {
		err = s.DeleteMsg(t.Context(), r.Sequence)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Publish: %v, want ErrUnavailable until the duplicate window is over", err)
	}
}

// A stream that folds keys stores an event on another subject than it was sent to.
func TestDuplicateOnAFoldedSubject(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	js, root := b.JetStream(), b.Names().Root("events.")
	s, err := js.Stream(t.Context(), b.Names().EventsStream())
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.SubjectTransform = &jetstream.SubjectTransformConfig{
		Source: root + "*.*.*.*", Destination: root + "{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(8,4)}}.{{partition(8,4)}}",
	}
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	e := draftOf(t, b, "order.placed.v1", "1", "{}")
	for i := range 2 {
		if r, err := b.Publish(t.Context(), e); err != nil || r.Duplicate != (i == 1) {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestDuplicateThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.MSG.GET.>"}},
		}}}
	}})
	b := bustest.Provision(t, bustest.Connect(t, bus.Config{URL: s.URL(), User: "u", Password: "p"}), topology.Config{})
	e := draftOf(t, b, "order.placed.v1", "1", "{}")
	if _, err := b.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Publish(t.Context(), e); !errors.Is(err, bus.ErrDenied) || !strings.Contains(err.Error(), "$JS.API.STREAM.MSG.GET.EVENTS") {
		t.Errorf("Publish: %v", err)
	}
}
