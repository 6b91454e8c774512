package cdc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/cdc"
)

func TestFeedTellsOfCommitsInTheirOrder(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	r := read(t, newFeed(t, target, o, cdc.Config{})).ready(t)
	early, late, never := begin(t, o), begin(t, o), begin(t, o)
	row(t, early, o, 1)
	row(t, late, o, 2)
	row(t, never, o, 3)
	row(t, late, o, 0) // an id like others
	row(t, early, o, -5)
	for _, end := range []func() error{late.Commit, never.Rollback, early.Commit} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, o.DB(), `UPDATE `+table(o)+` SET status = 'PUBLISHED'`)
	execute(t, o.DB(), `DELETE FROM `+table(o)+` WHERE id = 2`)
	row(t, o.DB(), o, 4)
	r.expect(t, 2, 0, 1, -5, 4)
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// confirmed waits until the position is past all that was written so far.
func confirmed(t *testing.T, o *outbox.Outbox) {
	t.Helper()
	end := scan(t, o, `SELECT pg_current_wal_lsn()::text`)
	bustest.Eventually(t, within, func() bool {
		return scan(t, o, `SELECT (confirmed_flush_lsn >= $2::text::pg_lsn)::text FROM pg_replication_slots WHERE slot_name = $1`, table(o), end) == "true"
	})
}

// What is confirmed does not come again; what is not does.
func TestFeedResumes(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	f := newFeed(t, target, o, cdc.Config{})
	first := read(t, f).ready(t)
	row(t, o.DB(), o, 1)
	first.expect(t, 1)
	confirmed(t, o)
	refusal := errors.New("no database")
	first.mu.Lock()
	first.refuse = refusal
	first.mu.Unlock()
	row(t, o.DB(), o, 2)
	if err := first.wait(); !errors.Is(err, refusal) {
		t.Fatalf("Tail = %v, want %v", err, refusal)
	}
	if err := f.Health(); !errors.Is(err, refusal) {
		t.Errorf("Health = %v, want %v", err, refusal)
	}
	row(t, o.DB(), o, 3)
	second := readAgain(t, f)
	second.expect(t, 2, 3)
	confirmed(t, o)
	if err := f.Health(); err != nil {
		t.Error(err)
	}
	if err := second.end(); err != nil {
		t.Error(err)
	}
	row(t, o.DB(), o, 4)
	third := readAgain(t, f)
	third.expect(t, 4)
	if err := third.end(); err != nil {
		t.Error(err)
	}
}

// readAgain reads as soon as Postgres has noticed that the last reader is gone.
func readAgain(t testing.TB, f *cdc.Feed) (r *reader) {
	t.Helper()
	bustest.Eventually(t, within, func() error {
		r = read(t, f)
		select {
		case <-r.attached:
			return nil
		case err := <-r.ended:
			return err
		}
	})
	return r
}

func TestFeedHasOneReader(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	f, other := newFeed(t, target, o, cdc.Config{}), newFeed(t, target, o, cdc.Config{})
	r := read(t, f).ready(t)
	if err := read(t, other).wait(); !errors.Is(err, outbox.ErrFeedTaken) {
		t.Errorf("Tail of another = %v, want ErrFeedTaken", err)
	}
	if err := other.Health(); err != nil {
		t.Errorf("standing by is not healthy: %v", err)
	}
	if err := other.Drop(t.Context()); !errors.Is(err, outbox.ErrFeedTaken) {
		t.Errorf("Drop of a feed that is read = %v, want ErrFeedTaken", err)
	}
	row(t, o.DB(), o, 1)
	r.expect(t, 1)
	if err := r.end(); err != nil {
		t.Error(err)
	}
	row(t, o.DB(), o, 2)
	readAgain(t, other).expect(t, 2)
}

func TestFeedReadsALargeTransaction(t *testing.T) {
	t.Parallel()
	const rows = 100_000
	target := aloneOnItsServer(t)
	o := open(t, target)
	r := read(t, newFeed(t, target, o, cdc.Config{})).ready(t)
	execute(t, o.DB(), `INSERT INTO `+table(o)+` (message_id, subject, key, data)
		SELECT n, 'events.a.b.v1.' || n, n, convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) n`, rows)
	const part = rows / 10 // that it goes on is waited for: all of it takes as long as the machine does
	for want := part; want <= rows; want += part {
		bustest.Eventually(t, within, func() error {
			if n := len(r.got()); n < want {
				return fmt.Errorf("%d rows, want %d", n, want)
			}
			return nil
		})
	}
	got := r.got()
	if len(got) != rows {
		t.Errorf("%d rows, want %d", len(got), rows)
	}
	for i, id := range got {
		if id != int64(i+1) {
			t.Fatalf("row %d has id %d", i+1, id)
		}
	}
}

// A commit that waits for a standby is on disk, but nobody sees its rows yet.
func TestFeedTellsOfWhatCanBeSeen(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"}})
	target := s.Database(t)
	o := open(t, target)
	r := read(t, newFeed(t, target, o, cdc.Config{})).ready(t)
	arrive := sync.OnceFunc(func() { // the standby, or who waits for it waits for ever
		for _, do := range []string{`ALTER SYSTEM SET synchronous_standby_names = ''`, `SELECT pg_reload_conf()`} {
			if _, err := o.DB().ExecContext(context.WithoutCancel(t.Context()), do); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(arrive)
	committed := make(chan error, 1)
	tx := begin(t, o)
	execute(t, tx, `SET LOCAL synchronous_commit = on`)
	row(t, tx, o, 1)
	go func() { committed <- tx.Commit() }()
	waits := `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`
	bustest.Eventually(t, within, func() bool { return scan(t, o, waits) == "1" })
	row(t, o.DB(), o, 2)
	sent := scan(t, o, `SELECT pg_current_wal_lsn()::text`)
	bustest.Eventually(t, within, func() bool {
		return scan(t, o, `SELECT count(*) FROM pg_stat_replication WHERE sent_lsn >= $1::text::pg_lsn`, sent) == "1"
	})
	if got := r.got(); len(got) > 0 || scan(t, o, waits) != "1" {
		t.Errorf("ids %v were told before the commit", got)
	}
	arrive()
	if err := <-committed; err != nil {
		t.Error(err)
	}
	r.expect(t, 1, 2)
}

// While nothing is published the slot is behind, and everybody can see it. The
// connection lives on although far more has come than is read ahead.
func TestFeedLagIsVisible(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"wal_sender_timeout": "3s"}})
	target := s.Database(t)
	o := open(t, target)
	metrics := prometheus.NewRegistry()
	f := newFeed(t, target, o, cdc.Config{Metrics: metrics, MaxLag: 100_000})
	stuck := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var rows int
	go func() {
		ended <- f.Tail(ctx, func(context.Context) error { return nil }, func(ctx context.Context, ids []int64) error {
			select {
			case <-stuck:
				rows += len(ids)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	lag := func() float64 { return gauge(t, metrics, "farandole_outbox_slot_lag_bytes") }
	bustest.Eventually(t, within, func() bool { return gauge(t, metrics, "farandole_outbox_slot_active") == 1 })
	const commits, each = 20, 1000 // the position moves up to the oldest commit that is not dealt with
	for i := range commits {
		execute(t, o.DB(), `INSERT INTO `+table(o)+` (message_id, subject, key) SELECT n, 'events.a.b.v1.k', 'k' FROM generate_series($1::int, $2::int) n`,
			i*each, (i+1)*each-1)
	}
	bustest.Eventually(t, within, func() bool { return lag() > 1_000_000 })
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), "behind") {
		t.Errorf("Health = %v, want that it is behind", err)
	}
	since := time.Now()
	bustest.Eventually(t, within, func() bool { return time.Since(since) > 7*time.Second }) // twice wal_sender_timeout
	select {
	case err := <-ended:
		t.Fatalf("the connection was lost: %v", err)
	default:
	}
	close(stuck)
	bustest.Eventually(t, within, func() bool { return lag() < 100_000 })
	bustest.Eventually(t, within, f.Health)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if rows != commits*each {
		t.Errorf("%d rows, want %d: the connection was lost in between", rows, commits*each)
	}
}

// What other databases of the server write does not pile up behind a quiet outbox.
func TestFeedOfAQuietOutboxMovesOn(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{})
	target := s.Database(t)
	o, busy := open(t, target), open(t, s.Database(t))
	read(t, newFeed(t, target, o, cdc.Config{})).ready(t)
	execute(t, busy.DB(), `INSERT INTO `+table(busy)+` (message_id, subject, key) SELECT n, 's', 'k' FROM generate_series(1, 1000) n`)
	confirmed(t, o)
}
