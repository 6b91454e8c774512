package bus_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

func TestA_denied_publish_is_told_at_once_with_its_subject(t *testing.T) {
	t.Parallel()
	prefix := bustest.Prefix()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		permit := func(publish, subscribe []string) *server.Permissions {
			return &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: subscribe},
			}
		}
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "inventory", Password: "p", Permissions: permit([]string{prefix + ".events.inventory.>"}, []string{"_INBOX.>"})},
			{Username: "deaf", Password: "p", Permissions: permit([]string{">"}, []string{"elsewhere.>"})},
		}
	}})
	login := func(user string) *bus.Bus {
		return bustest.Connect(t, bus.Config{URL: s.URL(), User: user, Password: "p", Names: event.Names{Prefix: prefix}})
	}
	bustest.Provision(t, login("admin"), topology.Config{})
	denied := func(t *testing.T, subject string, fn func() error) {
		t.Helper()
		err := fn()
		if !errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrUnavailable) {
			t.Fatalf("got %v, want ErrDenied", err)
		}
		mention(t, err.Error(), "permission denied for", subject)
	}

	t.Run("publish", func(t *testing.T) {
		t.Parallel()
		b := login("inventory")
		e := newEvent(t, b, "k")
		denied(t, prefix+".events.order.placed.v1.k", func() error {
			_, err := b.Publish(t.Context(), e)
			return err
		})
		// What is granted works on the same connection, side by side.
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := publishTo(t, b, nats.NewMsg(prefix+".events.inventory.reserved.v1.k")); err != nil {
					t.Error(err)
				}
				if err := publishTo(t, b, nats.NewMsg(prefix+".events.order.x.v1.k")); !errors.Is(err, bus.ErrDenied) {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	t.Run("batch", func(t *testing.T) {
		t.Parallel()
		b := login("inventory")
		denied(t, prefix+".events.order.placed.v1.k", func() error {
			_, err := sendBatch(t, b, nats.NewMsg(prefix+".events.order.placed.v1.k"), nats.NewMsg(prefix+".events.inventory.reserved.v1.k"))
			return err
		})
	})
	t.Run("violation before Wait", func(t *testing.T) {
		t.Parallel()
		b := login("inventory")
		p, err := b.Send(t.Context(), nats.NewMsg(prefix+".events.order.y.v1.k"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Conn().Flush(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // asking again gives the same answer
			denied(t, ".events.order.y.v1.k", func() error {
				_, err := p.Wait(t.Context())
				return err
			})
		}
	})
	t.Run("inbox", func(t *testing.T) {
		t.Parallel()
		b := login("deaf")
		for range 2 { // the server says it once only
			denied(t, "subscription _INBOX.", func() error {
				_, err := b.Publish(t.Context(), newEvent(t, b, "k"))
				return err
			})
		}
		denied(t, "subscription _INBOX.", func() error {
			_, err := topology.NewPlan(t.Context(), b, topology.New(b.Names(), topology.Config{}))
			return err
		})
	})
	t.Run("foreign inbox", func(t *testing.T) {
		t.Parallel()
		b := bustest.Connect(t, bus.Config{URL: s.URL(), User: "deaf", Password: "p", InboxPrefix: "elsewhere", Names: event.Names{Prefix: prefix}})
		for _, foreign := range []string{"_INBOX.>", "elsewhat.abcdef.*"} {
			sub, err := b.Conn().SubscribeSync(foreign)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sub.NextMsg(2 * time.Second); !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", foreign, err)
			}
		}
		if _, err := b.Publish(t.Context(), newEvent(t, b, "k")); err != nil {
			t.Errorf("with an inbox of its own: %v", err)
		}
	})
	t.Run("API", func(t *testing.T) {
		t.Parallel()
		b := login("inventory")
		denied(t, "$JS.API.STREAM.INFO."+b.Names().TimersStream(), func() error {
			_, err := topology.Provision(t.Context(), b, topology.New(b.Names(), topology.Config{}))
			return err
		})
	})
}

func TestPublishErrorsAreToldApart(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) { o.MaxPayload = 4096 }})
	b := bustest.Connect(t, bus.Config{URL: s.URL()})
	addStream(t, b, jetstream.StreamConfig{
		Name: "FULL", Subjects: []string{"full.>"}, MaxMsgs: 1, MaxMsgSize: 100, Discard: jetstream.DiscardNew,
	})
	addStream(t, b, jetstream.StreamConfig{
		Name: "BYTES", Subjects: []string{"bytes.>"}, MaxBytes: 200, Discard: jetstream.DiscardNew,
	})
	if _, err := b.Conn().Subscribe("service", func(m *nats.Msg) {
		if err := m.Respond([]byte("ok")); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := publishTo(t, b, nats.NewMsg("full.1")); err != nil {
		t.Fatal(err)
	}
	message := func(subject string, size int, headers ...string) *nats.Msg {
		m := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: make([]byte, size)}
		for i := 0; i < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		return m
	}
	for name, tc := range map[string]struct {
		m    *nats.Msg
		want error
	}{
		"no stream":            {message("nobody.home", 0), bus.ErrNoStream},
		"not a stream":         {message("service", 0), bus.ErrNoStream},
		"stream full":          {message("full.2", 0), bus.ErrStreamFull},
		"bytes full":           {message("bytes.1", 300), bus.ErrStreamFull},
		"server's max_payload": {message("full.2", 4097), bus.ErrTooLarge},
		"payload with headers": {message("full.2", 4000, "Big", strings.Repeat("h", 200)), bus.ErrTooLarge},
		"stream's limit":       {message("full.2", 200), bus.ErrTooLarge},
		"wrong last sequence":  {message("full.1", 0, jetstream.ExpectedLastSubjSeqHeader, "7"), bus.ErrConflict},
		"refused header":       {message("full.1", 0, jetstream.MsgTTLHeader, "5s"), bus.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := publishTo(t, b, tc.m)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			mention(t, err.Error(), tc.m.Subject)
		})
	}
}
