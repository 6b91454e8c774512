package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

// TestCommandsNameTheGrantThatIsMissing denies one subject of publish at a time.
// All users have an inbox of their own, and no other.
func TestCommandsNameTheGrantThatIsMissing(t *testing.T) {
	t.Parallel()
	names := event.Names{Prefix: bustest.Prefix()}
	events, letters := names.EventsStream(), names.DLQStream()
	marks, pauses := "KV_"+names.Bucket("dedup"), names.Bucket("pauses")
	order := `{"order_id":"ord-1"}`
	cases := []struct {
		denied  string
		command []string
	}{
		{"$JS.API.STREAM.INFO." + events, []string{"topology", "plan"}},
		{"$JS.API.STREAM.INFO." + events, []string{"tail", "--no-follow", "--from-start"}},
		{"$JS.API.CONSUMER.CREATE." + events + ".>", []string{"tail", "--no-follow", "--from-start"}},
		{"$JS.API.CONSUMER.MSG.NEXT." + events + ".>", []string{"tail", "--no-follow", "--from-start"}},
		{names.Root("events.order.>"), []string{"publish", "order.placed.v1", "ord-1", "--data", order}},
		{"$JS.API.STREAM.INFO." + letters, []string{"dlq", "list"}},
		{"$JS.API.CONSUMER.CREATE." + letters + ".>", []string{"dlq", "list"}},
		{"$JS.API.CONSUMER.MSG.NEXT." + letters + ".>", []string{"dlq", "stats"}},
		{"$JS.API.DIRECT.GET." + letters + ".>", []string{"dlq", "show", "LETTER"}},
		{"$JS.API.DIRECT.GET." + marks + ".>", []string{"dlq", "show", "LETTER"}},
		{"$JS.API.CONSUMER.INFO." + events + ".payment", []string{"dlq", "replay", "LETTER"}},
		{names.Root("redrive.payment.>"), []string{"dlq", "replay", "LETTER", "--force"}},
		{"$JS.API.STREAM.MSG.DELETE." + letters, []string{"dlq", "discard", "LETTER", "--yes"}},
		{"$JS.API.STREAM.INFO.KV_" + pauses, []string{"breaker", "list"}},
		{"$JS.API.CONSUMER.CREATE.KV_" + pauses + ".>", []string{"breaker", "show", "gateway"}},
		{"$JS.API.DIRECT.GET.KV_" + pauses + ".>", []string{"breaker", "open", "gateway"}},
		{"$KV." + pauses + ".payment", []string{"breaker", "open", "gateway"}},
		{names.Root("events.breaker.>"), []string{"breaker", "open", "gateway"}},
	}
	users := []*server.User{{Username: "admin", Password: "p"}}
	inbox := func(i int) string { return fmt.Sprint("_INBOX_", i) }
	for i, c := range cases {
		users = append(users, &server.User{Username: fmt.Sprint(i), Password: "p", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Deny: []string{c.denied}},
			Subscribe: &server.SubjectPermission{Allow: []string{inbox(i) + ".>"}},
		}})
	}
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) { o.Users = users }})
	admin := system{Bus: bustest.Connect(t, bus.Config{URL: s.URL(), User: "admin", Password: "p", Names: names})}
	_, err := topology.Provision(t.Context(), admin.Bus, topology.New(admin.Names(), wantedTopology(1)))
	must(t, err)
	share(t, admin, "payment/gateway")
	for i, c := range cases {
		e, err := admin.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(fmt.Sprint("ord-", i)), ID: fmt.Sprint("e-", i), Data: []byte(order)})
		must(t, err)
		_, err = admin.Publish(t.Context(), e)
		must(t, err)
		letter := admin.park(t, e, event.Attempt{Error: "broken"})
		t.Run(c.denied+" "+strings.Join(c.command, " "), func(t *testing.T) {
			t.Parallel()
			args := []string{"--server", s.URL(), "--user", fmt.Sprint(i), "--password", "p", "--prefix", names.Prefix, "--inbox-prefix", inbox(i)}
			for _, arg := range c.command {
				args = append(args, strings.ReplaceAll(arg, "LETTER", letter))
			}
			r := farandole(t, "", args...)
			for _, want := range []string{"permission denied for " + strings.TrimSuffix(c.denied, ">"), "grant this user publish"} {
				if r.code == 0 || !strings.Contains(r.err, want) {
					t.Errorf("code %d, said %q, want %q", r.code, r.err, want)
				}
			}
		})
	}
}
