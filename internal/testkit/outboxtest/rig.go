package outboxtest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/topology"
)

// Factory makes databases. All fields are required.
type Factory struct {
	Dialect outbox.Dialect
	// Create makes an empty database for the test and returns what Open takes.
	Create func(t *testing.T) (target string)
	// Open opens the database, as each process of a system would.
	Open func(target string) (*sql.DB, error)
}

const (
	// soon is a generous bound for what must happen.
	soon = 60 * time.Second
	// lease is short, for tests that wait for its end.
	lease = 2 * time.Second

	placed = "order.placed.v1"
)

// rig is a test at work on an outbox and a bus.
type rig struct {
	*testing.T
	Factory
	target string
	server *bustest.TestServer
	db     *sql.DB
	outbox *outbox.Outbox
	bus    *bus.Bus
}

// place is where a rig's bus is.
type place struct {
	tune     func(*server.Options) // of a server of its own; defaults to the shared one
	bus      bus.Config
	topology topology.Config
}

// newRig has an empty outbox and a bus with its streams.
func newRig(t *testing.T, f Factory, p place) *rig {
	t.Helper()
	r := &rig{T: t, Factory: f, target: f.Create(t)}
	if p.tune == nil {
		r.server = bustest.Server(t)
	} else {
		r.server = bustest.StartServer(t, bustest.ServerConfig{Tune: p.tune})
	}
	p.bus.Names = event.Names{Prefix: bustest.Prefix()}
	if p.bus.User == "" {
		p.bus.InProcess = r.server
	} else {
		p.bus.URL = r.server.URL()
	}
	r.bus = bustest.Provision(t, bustest.Connect(t, p.bus), p.topology)
	r.db, r.outbox = r.open()
	r.ok(r.outbox.Migrate(t.Context()))
	return r
}

// open opens the database once more, as another process would.
func (r *rig) open() (*sql.DB, *outbox.Outbox) {
	r.Helper()
	db, err := r.Open(r.target)
	r.ok(err)
	r.Cleanup(func() {
		if err := db.Close(); err != nil {
			r.Error(err)
		}
	})
	return db, r.outboxOf(db, "")
}

// outboxOf is an outbox whose tables have a prefix.
func (r *rig) outboxOf(db *sql.DB, prefix string) *outbox.Outbox {
	r.Helper()
	o, err := outbox.New(db, outbox.Config{Dialect: r.Dialect, Prefix: prefix, Names: r.bus.Names(), Source: "/outboxtest"})
	r.ok(err)
	return o
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// event is one of a key; its data is the id.
func (r *rig) event(key, id string) event.Event {
	r.Helper()
	return r.eventOf(key, id, fmt.Appendf(nil, "%q", id))
}

func (r *rig) eventOf(key, id string, data []byte) event.Event {
	r.Helper()
	e, err := r.outbox.Seal(event.Draft{Type: placed, Key: event.Key(key), ID: id, ContentType: event.ContentTypeJSON, Data: data})
	r.ok(err)
	return e
}

// events are n of each key, in turn: key-0 for each, then key-1 and so on.
func (r *rig) events(n int, keys ...string) (all []event.Event) {
	r.Helper()
	for i := range n {
		for _, key := range keys {
			all = append(all, r.event(key, fmt.Sprintf("%s-%d", key, i)))
		}
	}
	return all
}

// keys are n different ones.
func keys(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(prefix, i)
	}
	return all
}

// add commits events in one transaction.
func (r *rig) add(events ...event.Event) {
	r.Helper()
	r.ok(add(r.Context(), r.outbox, events...))
}

func add(ctx context.Context, o *outbox.Outbox, events ...event.Event) error {
	tx, err := o.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := o.Add(ctx, tx, events...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// exec runs a statement.
func (r *rig) exec(query string, args ...any) {
	r.Helper()
	r.execIn(r.db, query, args...)
}

// execIn runs a statement in a transaction.
func (r *rig) execIn(tx outbox.Execer, query string, args ...any) {
	r.Helper()
	if _, err := tx.ExecContext(r.Context(), query, args...); err != nil {
		r.Fatalf("%s: %v", query, err)
	}
}

// running is a relay that runs; stop ends it and waits.
type running struct {
	*outbox.Relay
	log  lines
	stop func()
}

// relay starts a relay on the rig's outbox, which ends with the test at the latest.
func (r *rig) relay(cfg outbox.RelayConfig) *running {
	r.Helper()
	return r.relayOn(r.outbox, r.bus, cfg)
}

func (r *rig) relayOn(o *outbox.Outbox, b *bus.Bus, cfg outbox.RelayConfig) *running {
	r.Helper()
	x := &running{}
	cfg.Logger = zerolog.New(&x.log)
	var err error
	x.Relay, err = outbox.NewRelay(o, b, cfg)
	r.ok(err)
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Errorf("Run: %v", err)
		}
	})
	r.Cleanup(func() {
		x.stop()
		if r.Failed() {
			r.Logf("a relay has said\n%s", text.Cut(x.log.String(), 4000))
		}
	})
	return x
}

// lines are what a logger or a process has written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// says waits until text was written.
func (r *rig) says(l *lines, text string) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		if !strings.Contains(l.String(), text) {
			return fmt.Errorf("%q is not in the log:\n%s", text, l)
		}
		return nil
	})
}

// message is one that the event stream has stored.
type message struct{ id, key, data string }

// stored are the messages of the event stream, in its order.
func (r *rig) stored() (all []message) {
	r.Helper()
	scan := bus.ScanConfig{Filter: r.bus.Names().EventsFilter(), From: 1}
	r.ok(r.bus.ScanMessages(r.Context(), r.bus.Names().EventsStream(), scan, func(m *nats.Msg, _ *nats.MsgMetadata) (bool, error) {
		all = append(all, message{
			id: m.Header.Get(nats.MsgIdHdr), key: m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], data: string(m.Data),
		})
		return true, nil
	}))
	return all
}

// wantOnce wants so many messages in the stream, none of them twice.
func (r *rig) wantOnce(n int) []message {
	r.Helper()
	all := r.stored()
	times := map[string]int{}
	for _, m := range all {
		times[m.id]++
	}
	if len(all) != n || len(times) != n {
		r.Errorf("the stream has %d messages of %d events, want %d", len(all), len(times), n)
	}
	return all
}

// wantOrder wants the messages of each key in the order of [rig.events].
func (r *rig) wantOrder(all []message) {
	r.Helper()
	next := map[string]int{}
	for _, m := range all {
		if want := fmt.Sprintf("%q", fmt.Sprintf("%s-%d", m.key, next[m.key])); m.data != want {
			r.Fatalf("of key %s comes %s, want %s", m.key, m.data, want)
		}
		next[m.key]++
	}
}

// counts are how many rows have each status.
type counts map[outbox.Status]int

func (r *rig) statuses() (counts, error) {
	rows, err := r.db.QueryContext(r.Context(), "SELECT status, count(*) FROM outbox GROUP BY status")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	all := counts{}
	for rows.Next() {
		var status outbox.Status
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		all[status] = n
	}
	return all, rows.Err()
}

// eventually waits until so many rows have each status, and none another one.
func (r *rig) eventually(want counts) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		got, err := r.statuses()
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("rows are %v, want %v", got, want)
		}
		return err
	})
}

// number asks the database for one.
func (r *rig) number(query string) (n int) {
	r.Helper()
	if err := r.db.QueryRowContext(r.Context(), query).Scan(&n); err != nil {
		r.Fatalf("%s: %v", query, err)
	}
	return n
}

// count counts the rows of what follows FROM.
func (r *rig) count(from string) int {
	r.Helper()
	return r.number("SELECT count(*) FROM " + from)
}

// becomes waits until so many rows are in what follows FROM.
func (r *rig) becomes(want int, from string) {
	r.Helper()
	bustest.Eventually(r, soon, func() error {
		if n := r.count(from); n != want {
			return fmt.Errorf("%d rows in %s, want %d", n, from, want)
		}
		return nil
	})
}

// unmarkable makes the database refuse that rows are marked as published, until
// markable is called.
func (r *rig) unmarkable() (markable func()) {
	r.Helper()
	if r.Dialect == outbox.SQLite {
		r.exec(`CREATE TRIGGER unmarkable BEFORE UPDATE ON outbox WHEN NEW.status = 'PUBLISHED'
			BEGIN SELECT RAISE(ABORT, 'unmarkable'); END`)
		return func() { r.exec("DROP TRIGGER unmarkable") }
	}
	r.exec(`CREATE FUNCTION unmarkable() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'unmarkable'; END $$`)
	r.exec(`CREATE TRIGGER unmarkable BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.status = 'PUBLISHED') EXECUTE FUNCTION unmarkable()`)
	return func() { r.exec("DROP TRIGGER unmarkable ON outbox") }
}

// past is a time of the database, so many seconds ago.
func (r *rig) past(seconds int) string {
	if r.Dialect == outbox.SQLite {
		return fmt.Sprintf("CAST(unixepoch('subsec') * 1000 AS INTEGER) - %d000", seconds)
	}
	return fmt.Sprintf("clock_timestamp() - interval '%d s'", seconds)
}

// soon is a time from now on, in SQL: half a millisecond later for each row.
func (r *rig) soon() string {
	if r.Dialect == outbox.SQLite {
		return "CAST(unixepoch('subsec') * 1000 AS INTEGER) + id / 2"
	}
	return "clock_timestamp() + id * interval '0.5 ms'"
}
