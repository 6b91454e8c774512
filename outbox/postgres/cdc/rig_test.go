package cdc_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
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

// within is for what must happen.
const within = time.Minute

func TestMain(m *testing.M) { bustest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open returns the outbox of a fresh database, with a prefix of its own: slots
// of all databases of a server share one space of names.
func open(t testing.TB, target string) *outbox.Outbox {
	t.Helper()
	return openPrefix(t, target, bustest.Prefix()+"_")
}

func openPrefix(t testing.TB, target, prefix string) *outbox.Outbox {
	t.Helper()
	db, err := postgres.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	o, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

// aloneOnItsServer is an empty database for large transactions. On the server that the
// tests share no slot is made before they end, and each feed reads all their log.
func aloneOnItsServer(t testing.TB) string {
	t.Helper()
	return pgtest.Start(t, pg.Config{}).Database(t)
}

func newFeed(t testing.TB, target string, o *outbox.Outbox, cfg cdc.Config) *cdc.Feed {
	t.Helper()
	f, err := cdc.New(target, o, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// reader is a Tail that runs, and what it was told.
type reader struct {
	attached chan struct{} // closed when it reads
	ended    chan error
	cancel   context.CancelFunc

	mu  sync.Mutex
	ids []int64
	// refuse, while set, is what publish returns.
	refuse error
}

func read(t testing.TB, f *cdc.Feed) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{attached: make(chan struct{}), ended: make(chan error, 1), cancel: cancel}
	go func() {
		r.ended <- f.Tail(ctx, func(context.Context) error { close(r.attached); return nil }, r.publish)
	}()
	t.Cleanup(cancel)
	return r
}

func (r *reader) publish(_ context.Context, ids []int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	r.ids = append(r.ids, ids...)
	return nil
}

func (r *reader) got() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int64{}, r.ids...)
}

// ready waits until the feed is read.
func (r *reader) ready(t testing.TB) *reader {
	t.Helper()
	select {
	case <-r.attached:
	case err := <-r.ended:
		t.Fatalf("it has ended: %v", err)
	case <-time.After(within):
		t.Fatal("it does not begin to read")
	}
	return r
}

func (r *reader) expect(t testing.TB, ids ...int64) {
	t.Helper()
	bustest.Eventually(t, within, func() error {
		if got := r.got(); fmt.Sprint(got) != fmt.Sprint(ids) {
			return fmt.Errorf("ids %v, want %v", got, ids)
		}
		return nil
	})
}

// end returns what Tail has returned, after it was told to end.
func (r *reader) end() error {
	r.cancel()
	return r.wait()
}

func (r *reader) wait() error {
	select {
	case err := <-r.ended:
		return err
	case <-time.After(within):
		return errors.New("Tail does not return")
	}
}

type execer interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

func execute(t testing.TB, db execer, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// row inserts a row with an id.
func row(t testing.TB, db execer, o *outbox.Outbox, id int64) {
	t.Helper()
	execute(t, db, `INSERT INTO `+table(o)+` (id, message_id, subject, key, data) VALUES ($1, $2, 'events.a.b.v1.k', 'k', $3)`,
		id, fmt.Sprint("m", id), []byte(strings.Repeat("x", int(id&7)*3000)))
}

func table(o *outbox.Outbox) string { return o.Config().Prefix + "outbox" }

func begin(t testing.TB, o *outbox.Outbox) *sql.Tx {
	t.Helper()
	tx, err := o.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func scan(t testing.TB, o *outbox.Outbox, query string, args ...any) (text string) {
	t.Helper()
	if err := o.DB().QueryRowContext(t.Context(), query, args...).Scan(&text); err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return text
}

func gauge(t testing.TB, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no gauge %s", name)
	return 0
}

// never is a Poll that does not come: what is published then, the feed has told.
const never = time.Hour

// rig is an outbox whose relays read a feed.
type rig struct {
	testing.TB
	target string
	bus    *bus.Bus
	outbox *outbox.Outbox
	log    said // by all relays
}

// said is a log.
type said struct {
	mu   sync.Mutex
	text strings.Builder
	seen map[string]int
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// again reports whether text was said since it was last asked for.
func (s *said) again(text string) bool {
	n := strings.Count(s.String(), text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]int{}
	}
	before := s.seen[text]
	s.seen[text] = n
	return n > before
}

// says waits until a relay has said text, since the last time.
func (r *rig) says(text string) {
	r.Helper()
	bustest.Eventually(r, within, func() bool { return r.log.again(text) })
}

func newRig(tb testing.TB, target string, b *bus.Bus) *rig {
	tb.Helper()
	r := &rig{TB: tb, target: target, bus: b}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the relays have said\n%s", &r.log)
		}
	})
	r.outbox = r.open(b.Names().Prefix + "_")
	if err := r.outbox.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return r
}

func (r *rig) open(prefix string) *outbox.Outbox {
	r.Helper()
	db, err := postgres.Open(r.target)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := db.Close(); err != nil {
			r.Error(err)
		}
	})
	o, err := outbox.New(db, outbox.Config{Dialect: outbox.Postgres, Prefix: prefix, Names: r.bus.Names(), Source: "/test"})
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// relay starts a relay that reads the feed, with a pool of its own as another
// process has; stop ends it and waits.
func (r *rig) relay(cfg outbox.RelayConfig) (relay *outbox.Relay, stop func()) {
	r.Helper()
	o := r.open(r.outbox.Config().Prefix)
	cfg.Logger = zerolog.New(&r.log)
	cfg.Feed = newFeed(r, r.target, o, cdc.Config{})
	relay, err := outbox.NewRelay(o, r.bus, cfg)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Errorf("Run: %v", err)
		}
	})
	r.Cleanup(stop)
	return relay, stop
}

// attached waits until a relay begins to read the feed.
func (r *rig) attached() {
	r.Helper()
	r.says("reading the feed")
}

// slot is something of the slot, as text; empty when there is none.
func (r *rig) slot(what string) string {
	r.Helper()
	return scan(r, r.outbox, `SELECT (`+what+`)::text FROM pg_replication_slots WHERE slot_name = $1`, table(r.outbox))
}

// add commits one event of a key; its id is its data.
func (r *rig) add(key, id string) {
	r.Helper()
	tx := begin(r, r.outbox)
	r.addTo(tx, key, id)
	if err := tx.Commit(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) addTo(tx *sql.Tx, key, id string) {
	r.Helper()
	if err := r.outbox.Add(r.Context(), tx, r.event(key, id)); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) event(key, id string) event.Event {
	r.Helper()
	return r.eventOf("order.placed.v1", key, id, fmt.Appendf(nil, "%q", id))
}

func (r *rig) eventOf(t event.Type, key, id string, data []byte) event.Event {
	r.Helper()
	e, err := r.outbox.Seal(event.Draft{Type: t, Key: event.Key(key), ID: id, ContentType: event.ContentTypeJSON, Data: data})
	if err != nil {
		r.Fatal(err)
	}
	return e
}

// insert commits rows of events in one statement, as a program in another
// language would; of one of them on another subject, if there is one.
func (r *rig) insert(subject string, events ...event.Event) {
	r.Helper()
	var ids, subjects, keys, headers []string
	var data [][]byte
	for _, e := range events {
		m, err := r.bus.Message(e)
		if err != nil {
			r.Fatal(err)
		}
		flat := map[string]string{}
		for name, v := range m.Header {
			if name != nats.MsgIdHdr {
				flat[name] = v[0]
			}
		}
		text, err := json.Marshal(flat)
		if err != nil {
			r.Fatal(err)
		}
		ids, subjects, keys = append(ids, m.Header.Get(nats.MsgIdHdr)), append(subjects, cmp.Or(subject, m.Subject)), append(keys, event.EscapeKey(event.PartitionKey(e)))
		headers, data = append(headers, string(text)), append(data, m.Data)
	}
	execute(r, r.outbox.DB(), `INSERT INTO `+table(r.outbox)+` (message_id, subject, key, headers, data)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[])`, ids, subjects, keys, headers, data)
}

// stored are the data of the messages of the event stream, in its order.
func (r *rig) stored() (ids []string) {
	r.Helper()
	stream, err := r.bus.JetStream().Stream(r.Context(), r.bus.Names().EventsStream())
	if err != nil {
		r.Fatal(err)
	}
	info, err := stream.Info(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(r.Context(), seq)
		if err != nil {
			r.Fatal(err)
		}
		if m.Header.Get(nats.MsgIdHdr) == "" {
			r.Errorf("message %d has no id", seq)
		}
		ids = append(ids, strings.Trim(string(m.Data), `"`))
	}
	return ids
}

// messages is how many messages the event stream has.
func (r *rig) messages() uint64 {
	r.Helper()
	stream, err := r.bus.JetStream().Stream(r.Context(), r.bus.Names().EventsStream())
	if err != nil {
		r.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

func (r *rig) expect(ids ...string) {
	r.Helper()
	bustest.Eventually(r, within, func() error {
		if n := r.messages(); n < uint64(len(ids)) {
			return fmt.Errorf("%d messages are stored, want %d", n, len(ids))
		}
		return nil
	})
	if got := r.stored(); !slices.Equal(got, ids) {
		r.Errorf("stored are %v, want %v", got, ids)
	}
}

// statuses waits until so many rows have each status, as in "PENDING 1, PUBLISHED 2".
func (r *rig) statuses(want string) {
	r.Helper()
	bustest.Eventually(r, within, func() error {
		got := scan(r, r.outbox, `SELECT coalesce(string_agg(status || ' ' || n, ', ' ORDER BY status), '')
			FROM (SELECT status, count(*) AS n FROM `+table(r.outbox)+` GROUP BY status) AS counts`)
		if got != want {
			return fmt.Errorf("rows are %s, want %s", got, want)
		}
		return nil
	})
}
