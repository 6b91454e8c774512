package bus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

func TestLatest(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	stream, m := b.Names().EventsStream(), message(b, "k")
	stored := b.Names().Stored(m.Subject, event.DefaultPartitions)
	if got, err := b.Latest(t.Context(), stream, stored); got != nil || err != nil {
		t.Fatalf("got %+v, %v, want nothing", got, err)
	}
	m.Header.Set("Mine", "1")
	for range 2 {
		if _, err := b.JetStream().PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.Latest(t.Context(), stream, stored)
	if err != nil || got.Sequence != 2 || string(got.Data) != "k" || got.Header.Get("Mine") != "1" || got.Subject != stored || time.Since(got.Time) > time.Hour {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := b.Latest(t.Context(), stream+"x", stored); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("no such stream: %v", err)
	}
}

func TestLatest_denied(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "u", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.MSG.GET.>"}},
		}}}
	}})
	b := bustest.Connect(t, bus.Config{URL: s.URL(), User: "u", Password: "u"})
	if _, err := b.Latest(t.Context(), "EVENTS", "events.a.b.v1.k"); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("got %v, want ErrDenied", err)
	}
}
