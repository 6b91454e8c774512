package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/status"
	"github.com/farandole/farandole/topology"
)

// lookersGrants are those that docs/contract.md gives to who only looks.
func lookersGrants(t *testing.T) (grants []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "contract.md"))
	must(t, err)
	_, rest, found := strings.Cut(string(page), "Who only looks")
	rest, _, _ = strings.Cut(rest, "\n\n")
	for _, m := range regexp.MustCompile("`(\\$JS[^`]*)`").FindAllStringSubmatch(rest, -1) {
		grants = append(grants, m[1])
	}
	if !found || len(grants) < 5 {
		t.Fatalf("docs/contract.md gives these grants: %v", grants)
	}
	return grants
}

func TestStatusNeedsNoMoreThanTheGrantsOfWhoLooks(t *testing.T) {
	t.Parallel()
	names := event.Names{Prefix: bustest.Prefix()}
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "p"}, {Username: "looker", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: lookersGrants(t)}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}}
	}})
	admin := system{Bus: bustest.Connect(t, bus.Config{URL: s.URL(), User: "admin", Password: "p", Names: names})}
	_, err := topology.Provision(t.Context(), admin.Bus, topology.New(names, topology.Config{}))
	must(t, err)
	durable(t, admin)
	admin.park(t, admin.publish(t, "{}"), event.Attempt{Number: 1, At: time.Now(), Class: "error", Error: "no"})
	admin.send(t, &nats.Msg{Subject: names.Root("ledger.inventory.18.page"), Header: nats.Header{
		"Farandole-Owner": {"4hq2xkz7ma"}, "Farandole-Page": {"page"}, "Farandole-Floor": {"1"}, "Farandole-Serial": {"3"},
		"Farandole-Types": {"order.placed.v1"},
	}})
	look := func(user string) (doc status.System) {
		t.Helper()
		got := farandole(t, "", "status", "--json", "--server", s.URL(), "--user", user, "--password", "p", "--prefix", names.Prefix)
		if got.code != exitDone || got.err != "" {
			t.Fatalf("%s: %+v", user, got)
		}
		must(t, json.Unmarshal([]byte(got.out), &doc))
		return doc
	}
	want, got := look("admin"), look("looker")
	want.At, got.At = time.Time{}, time.Time{}
	a, err := json.Marshal(want)
	must(t, err)
	b, err := json.Marshal(got)
	must(t, err)
	if !bytes.Equal(a, b) || len(got.Consumers) != 2 || got.Consumers[0].Lag == 0 || got.DeadLetters != 1 {
		t.Errorf("who looks sees\n%s\nan administrator\n%s", b, a)
	}
	for _, change := range [][]string{{"publish", "order.placed.v1", "ord-9", "--data", "{}"}, {"dlq", "discard", "--all", "--yes"}, {"consumer", "delete", "inventory", "--yes"}} {
		args := append(slices.Clone(change), "--server", s.URL(), "--user", "looker", "--password", "p", "--prefix", names.Prefix, "--wait", "2s")
		if got := farandole(t, "", args...); got.code != exitFailed || !strings.Contains(got.err, "permission denied") {
			t.Errorf("%v: %+v", change, got)
		}
	}
}
