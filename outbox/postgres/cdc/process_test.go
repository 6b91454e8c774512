//go:build unix

package cdc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
	"github.com/farandole/farandole/outbox/postgres/cdc"
)

// feedRelay is the environment variable that makes of a test's process a relay.
const feedRelay = "FEED_RELAY"

// order says what that relay works on.
type order struct{ Target, URL, Prefix string }

// asFeedRelay is what such a process does, until it is killed; false in any other.
func asFeedRelay(t *testing.T) bool {
	t.Helper()
	text, ok := os.LookupEnv(feedRelay)
	if !ok {
		return false
	}
	go func() { // whoever has started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an end is an end
		os.Exit(1)
	}()
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.run(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

func (o order) run(ctx context.Context) error {
	target := o.Target + "&application_name=" + feedRelay
	db, err := postgres.Open(target)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // the process ends
	b, err := bus.Connect(ctx, bus.Config{URL: o.URL, Names: event.Names{Prefix: o.Prefix}, Wait: within})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // the process ends
	box, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Prefix: o.Prefix + "_", Names: b.Names()})
	if err != nil {
		return err
	}
	log := zerolog.New(os.Stderr)
	feed, err := cdc.New(target, box, cdc.Config{Logger: log})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(box, b, outbox.RelayConfig{Poll: never, Feed: feed, Logger: log})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// process is a relay in a process of its own.
func (r *rig) process(url string) *exec.Cmd {
	r.Helper()
	text, err := json.Marshal(order{Target: r.target, URL: url, Prefix: r.bus.Names().Prefix})
	if err != nil {
		r.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(r.Context()), os.Args[0], "-test.run=^"+r.Name()+"$")
	cmd.Env = append(os.Environ(), feedRelay+"="+string(text))
	cmd.Stdout, cmd.Stderr = &r.log, &r.log
	if _, err := cmd.StdinPipe(); err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { r.kill(cmd) })
	return cmd
}

// kill kills it with SIGKILL. Killing it twice is fine.
func (r *rig) kill(cmd *exec.Cmd) {
	r.Helper()
	if cmd.ProcessState != nil {
		return
	}
	if err := cmd.Process.Kill(); err != nil {
		r.Error(err)
	}
	_ = cmd.Wait() //nolint:errcheck // it was killed, which is an error
}

// unmarkable makes statements that change rows wait until release is called.
func (r *rig) unmarkable() (release func()) {
	r.Helper()
	const number = 68
	execute(r, r.outbox.DB(), `CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(68); RETURN NEW; END $$`)
	execute(r, r.outbox.DB(), `CREATE TRIGGER wait_for_test BEFORE UPDATE ON `+table(r.outbox)+` FOR EACH ROW EXECUTE FUNCTION wait_for_test()`)
	conn, err := r.outbox.DB().Conn(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	lock := func(what string) {
		if _, err := conn.ExecContext(context.WithoutCancel(r.Context()), `SELECT `+what+`($1)`, number); err != nil {
			r.Error(err)
		}
	}
	lock("pg_advisory_lock")
	return func() {
		lock("pg_advisory_unlock")
		if err := conn.Close(); err != nil {
			r.Error(err)
		}
	}
}

// Killed between acknowledgement and mark, the rows come again to another relay, which
// waits for no lease; the stream drops the copies.
func TestFeed_relay_killed_before_mark(t *testing.T) {
	t.Parallel()
	if asFeedRelay(t) {
		return
	}
	r := newRig(t, pgtest.Database(t), bustest.NewBus(t))
	first := r.process(bustest.Server(t).URL())
	r.attached()
	r.add("a", "0")
	r.statuses("PUBLISHED 1")
	release := r.unmarkable()
	want := []string{"0"}
	for i := range 20 {
		want = append(want, fmt.Sprint(i+1))
	}
	tx := begin(t, r.outbox)
	for _, id := range want[1:] {
		r.addTo(tx, "a", id)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	waiting := `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	bustest.Eventually(t, within, func() bool { return r.messages() > 1 && scan(t, r.outbox, waiting) != "0" })
	r.kill(first)
	// The statement that it has sent must not be done in its name.
	bustest.Eventually(t, within, func() bool {
		execute(t, r.outbox.DB(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()`, feedRelay)
		return scan(t, r.outbox, waiting) == "0"
	})
	release()
	r.statuses("PENDING 20, PUBLISHED 1")
	r.relay(outbox.RelayConfig{Poll: never})
	r.statuses("PUBLISHED 21")
	r.add("a", "last")
	r.expect(append(want, "last")...)
}

// A relay that was stopped loses its slot to the one that stands by; when it
// goes on it stands by itself.
func TestFeed_relay_stopped(t *testing.T) {
	t.Parallel()
	if asFeedRelay(t) {
		return
	}
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"wal_sender_timeout": "5s"}})
	r := newRig(t, s.Database(t), bustest.NewBus(t))
	first := r.process(bustest.Server(t).URL())
	r.attached()
	second, _ := r.relay(outbox.RelayConfig{Poll: never})
	r.says("standing by")
	var want []string
	add := func(n int) {
		for range n {
			id := fmt.Sprint(len(want))
			want = append(want, id)
			r.add("a", id)
		}
	}
	add(50)
	signal := func(s syscall.Signal) {
		if err := first.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	reader := func() string {
		return r.slot("SELECT application_name FROM pg_stat_replication WHERE pid = active_pid")
	}
	if name := reader(); name != feedRelay {
		t.Fatalf("%s reads the slot", name)
	}
	signal(syscall.SIGSTOP)
	add(50)
	r.statuses("PUBLISHED 100")
	if name := reader(); name == feedRelay {
		t.Error("the slot is still read by the process that is stopped")
	}
	signal(syscall.SIGCONT)
	add(50)
	r.statuses("PUBLISHED 150")
	r.expect(want...)
	if err := second.Health(); err != nil {
		t.Error(err)
	}
}
