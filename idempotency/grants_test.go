package idempotency_test

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/topology"
)

// docs/idempotency.md names these grants.
func TestKV_needs_no_more_than_its_grants(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "shop", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{
					"$JS.API.INFO", "$KV.answers.>", "$JS.API.STREAM.INFO.KV_answers", "$JS.API.DIRECT.GET.KV_answers.>",
				}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	}})
	bustest.Provision(t, bustest.Connect(t, bus.Config{URL: s.URL(), User: "admin", Password: "p"}), topology.Config{Buckets: []string{"answers"}})
	store, err := idempotency.OpenKV(t.Context(), bustest.Connect(t, bus.Config{URL: s.URL(), User: "shop", Password: "p"}), "answers")
	must(t, err)
	begins(t, store, claimOf("first", "a"))
	must(t, store.Complete(t.Context(), claimOf("first", "a"), idempotency.Answer{Status: 201}))
	if there := isTaken(t, store, claimOf("second", "a")); there.Answer == nil {
		t.Errorf("%+v", there)
	}
	other := claimOf("third", "a")
	other.Key = "l"
	begins(t, store, other)
	must(t, store.Release(t.Context(), other))
}
