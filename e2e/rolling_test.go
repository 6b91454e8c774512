package e2e_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
	"github.com/farandole/farandole/topology"
)

// rollout is a service whose replicas are processes of two versions.
type rollout struct {
	*testing.T
	bus       *bus.Bus
	url, file string
	program   string
	published []string
}

func newRollout(t *testing.T) *rollout {
	t.Helper()
	dir := t.TempDir()
	r := &rollout{T: t, file: filepath.Join(dir, "effects.db")}
	var err error
	if r.program, err = build(t.Context(), dir, "./testdata/replica"); err != nil {
		t.Fatal(err)
	}
	server := bustest.StartServer(t, bustest.ServerConfig{})
	r.url = server.URL()
	r.bus = bustest.Connect(t, bus.Config{URL: r.url, Names: event.Names{Prefix: bustest.Prefix()}})
	bustest.Provision(t, r.bus, topology.Config{})
	return r
}

// start starts a replica of a version.
func (r *rollout) start(version string) *process {
	r.Helper()
	return startProgram(r.T, r.program, version, version, r.url, r.bus.Names().Prefix, r.file)
}

// publish publishes some events of both types.
func (r *rollout) publish(n int) {
	r.Helper()
	for range n {
		for _, t := range []event.Type{"parcel.arrived.v1", "parcel.lost.v1"} {
			id := fmt.Sprint("p-", len(r.published))
			e, err := r.bus.Seal(event.Draft{ID: id, Type: t, Key: event.Key(id), ContentType: event.ContentTypeJSON, Data: []byte("{}")})
			if err == nil {
				_, err = r.bus.Publish(r.Context(), e)
			}
			if err != nil {
				r.Fatal(err)
			}
			r.published = append(r.published, id)
		}
	}
}

// A new version that handles one more type is rolled forward, back and forward
// again, side by side with the old one, and replicas are killed on the way. No
// event is lost, none dead-lettered, each takes effect once.
func TestRollingDeploymentsLoseNothing(t *testing.T) {
	t.Parallel()
	r := newRollout(t)
	db, err := sqlite.Open(r.file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // a test
	rows, err := outbox.New(db, outbox.Config{Dialect: outbox.SQLite, Source: "/counter"})
	if err == nil {
		err = rows.Migrate(t.Context())
	}
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (event TEXT NOT NULL)")
	}
	if err != nil {
		t.Fatal(err)
	}
	count := func(query string) (n int) {
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	reach := func(least int) {
		t.Helper()
		bustest.Eventually(t, patience, func() error {
			if n := count("SELECT count(DISTINCT event) FROM effects"); n < least {
				return fmt.Errorf("%d of %d events have taken effect", n, len(r.published))
			}
			return nil
		})
	}

	r.publish(10) // the second type is stored, and nobody's yet
	olds := []*process{r.start("old"), r.start("old")}
	reach(10)
	r.publish(10)

	newer := r.start("new") // forward, side by side
	r.publish(10)
	reach(30)
	olds[0].kill()
	r.publish(10)

	newer.kill() // and back, in the middle of it
	olds = append(olds, r.start("old"))
	r.publish(10)
	reach(50)

	news := []*process{r.start("new"), r.start("new")} // forward again
	r.publish(10)
	olds[1].kill()
	olds[2].kill()
	r.publish(10)
	reach(len(r.published))
	for _, p := range news {
		p.stopCleanly()
	}

	if n := count("SELECT count(*) FROM effects"); n != len(r.published) {
		t.Errorf("%d effects of %d events", n, len(r.published))
	}
	letters, err := r.bus.JetStream().Stream(t.Context(), r.bus.Names().DLQStream())
	if err != nil {
		t.Fatal(err)
	}
	if n := letters.CachedInfo().State.Msgs; n > 0 {
		t.Errorf("%d events are dead-lettered", n)
	}
	durable, err := r.bus.JetStream().Consumer(t.Context(), r.bus.Names().EventsStream(), "counter")
	if err != nil {
		t.Fatal(err)
	}
	if info := durable.CachedInfo(); len(info.Config.FilterSubjects) != 3 || info.NumPending > 0 {
		t.Errorf("durable: %d pending, filters %v", info.NumPending, info.Config.FilterSubjects)
	}
}
