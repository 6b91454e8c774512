package members_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

// TestEachGrantIsNamedWhenItIsMissing runs a member with nothing but its grants,
// which docs/contract.md lists, and takes one after another away.
func TestEachGrantIsNamedWhenItIsMissing(t *testing.T) {
	t.Parallel()
	names := event.Names{Prefix: bustest.Prefix()}
	bucket := names.Bucket("members")
	grants := []string{
		"$JS.API.STREAM.INFO.KV_" + bucket,
		"$JS.API.CONSUMER.CREATE.KV_" + bucket + ".*.$KV." + bucket + ".payment.*",
		"$JS.API.CONSUMER.MSG.NEXT.KV_" + bucket + ".*",
		"$KV." + bucket + ".payment.*",
		"$JS.API.CONSUMER.DELETE.KV_" + bucket + ".*",
	}
	s := &system{T: t, names: names, server: bustest.StartServer(t, bustest.ServerConfig{Tune: permit(grants)})}
	s.bus = bustest.Connect(t, bus.Config{URL: s.server.URL(), User: "admin", Password: "admin", Names: names})
	s.provision()
	user := func() *bus.Bus {
		return bustest.Connect(t, bus.Config{URL: s.server.URL(), User: "payment", Password: "payment", InboxPrefix: "_INBOX_payment", Names: names})
	}
	m := start(t, user(), "a")
	balanced(t, m)
	m.stop()
	must(t, <-m.done)
	if err := m.Err(); err != nil {
		t.Errorf("with all grants: %v", err)
	}
	for i, grant := range grants[:4] { // without the last one the server forgets a watch later
		begin, _, _ := strings.Cut(grant, ".*")
		without := slices.Delete(slices.Clone(grants), i, i+1)
		s.server.Reload(t, permit(without))
		m := start(t, user(), "a")
		bustest.Eventually(t, soon, func() bool {
			err := m.Err()
			return errors.Is(err, bus.ErrDenied) && strings.Contains(err.Error(), begin)
		})
		m.stop()
		must(t, <-m.done)
	}
}

// permit makes users that may all, and the user payment that may what is granted.
func permit(publish []string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "admin"},
			{Username: "payment", Password: "payment", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: append([]string{"$JS.API.INFO", "$JS.API.STREAM.NAMES"}, publish...)},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_payment.>"}},
			}},
		}
	}
}
