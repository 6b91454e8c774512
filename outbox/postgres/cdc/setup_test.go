package cdc_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/cdc"
)

// refused runs Tail, which must fail, and checks that health says the same.
func refused(t *testing.T, f *cdc.Feed, want error, text string) {
	t.Helper()
	err := read(t, f).wait()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		t.Errorf("Tail = %v, want %v with %q", err, want, text)
	}
	if health := f.Health(); !errors.Is(health, want) {
		t.Errorf("Health = %v, want %v", health, want)
	}
}

func TestFeedConfigIsChecked(t *testing.T) {
	t.Parallel()
	target := "postgres://u:secret@localhost/x"
	o, err := outbox.New(nil, outbox.Config{Dialect: outbox.Postgres})
	if err != nil {
		t.Fatal(err)
	}
	lite, err := outbox.New(nil, outbox.Config{Dialect: outbox.SQLite})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		target string
		o      *outbox.Outbox
		cfg    cdc.Config
		text   string
	}{
		"slot":    {target, o, cdc.Config{Slot: "My-Slot"}, "Slot"},
		"lag":     {target, o, cdc.Config{MaxLag: -1}, "MaxLag"},
		"dialect": {target, lite, cdc.Config{}, "Postgres"},
		"target":  {"postgres://u:secret@localhost/x?sslmode=sometimes", o, cdc.Config{}, "target"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := cdc.New(tt.target, tt.o, tt.cfg)
			if !errors.Is(err, outbox.ErrConfig) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("New = %v, want ErrConfig about %s", err, tt.text)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestFeedSaysWhatTheServerLacks(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"wal_level": "replica"}})
	target := s.Database(t)
	refused(t, newFeed(t, target, open(t, target), cdc.Config{}), cdc.ErrSetup, "wal_level")
}

func TestFeedSaysThatNoSlotIsFree(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"max_replication_slots": "1"}})
	target := s.Database(t)
	o := open(t, target)
	execute(t, o.DB(), `SELECT pg_create_logical_replication_slot('somebodys', 'pgoutput')`)
	refused(t, newFeed(t, target, o, cdc.Config{}), cdc.ErrSetup, "max_replication_slots")
}

func TestFeedSaysWhatTheRoleLacks(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	role := bustest.Prefix()
	execute(t, o.DB(), `CREATE ROLE `+role+` LOGIN`)
	t.Cleanup(func() {
		if _, err := o.DB().Exec(`DROP ROLE ` + role); err != nil { //nolint:noctx // the test's has ended
			t.Error(err)
		}
	})
	refused(t, newFeed(t, strings.Replace(target, "farandole@", role+"@", 1), o, cdc.Config{}), cdc.ErrSetup, "replication")
	execute(t, o.DB(), `ALTER ROLE `+role+` REPLICATION`)
	r := read(t, newFeed(t, strings.Replace(target, "farandole@", role+"@", 1), o, cdc.Config{})).ready(t)
	row(t, o.DB(), o, 1)
	r.expect(t, 1)
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

func TestFeedLeavesTheSlotsOfOthersAlone(t *testing.T) {
	t.Parallel()
	target, other := pgtest.Database(t), pgtest.Database(t)
	o, slot := open(t, target), bustest.Prefix()
	f := newFeed(t, other, open(t, other), cdc.Config{Slot: slot})
	execute(t, o.DB(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	refused(t, f, cdc.ErrSetup, "another database")

	foreign := bustest.Prefix()
	execute(t, o.DB(), `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, foreign)
	refused(t, newFeed(t, target, o, cdc.Config{Slot: foreign}), cdc.ErrSetup, "test_decoding")

	o = open(t, target)
	execute(t, o.DB(), `CREATE PUBLICATION `+table(o)+` FOR TABLE `+o.Config().Prefix+`inbox`)
	refused(t, newFeed(t, target, o, cdc.Config{}), cdc.ErrSetup, "publication")
}

func TestFeedIsDropped(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	f := newFeed(t, target, o, cdc.Config{})
	if err := read(t, f).ready(t).end(); err != nil {
		t.Fatal(err)
	}
	left := func() string {
		return scan(t, o, `SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1)
			|| ' slots, ' || (SELECT count(*) FROM pg_publication WHERE pubname = $1) || ' publications'`, table(o))
	}
	if left := left(); left != "1 slots, 1 publications" {
		t.Errorf("%s are there", left)
	}
	bustest.Eventually(t, within, func() error { return f.Drop(t.Context()) }) // Postgres may not have noticed the end yet
	if left := left(); left != "0 slots, 0 publications" {
		t.Errorf("%s are left", left)
	}
	if err := f.Drop(t.Context()); err != nil {
		t.Errorf("dropping it again: %v", err)
	}
}

// The server gives the slot up when its disk would fill: the feed makes it anew.
func TestFeedMakesALostSlotAnew(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}})
	target := s.Database(t)
	o := open(t, target)
	f := newFeed(t, target, o, cdc.Config{})
	if err := read(t, f).ready(t).end(); err != nil {
		t.Fatal(err)
	}
	execute(t, o.DB(), `CREATE TABLE filler (t text)`)
	bustest.Eventually(t, within, func() error {
		execute(t, o.DB(), `INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 20000)`)
		execute(t, o.DB(), `SELECT pg_switch_wal()`)
		execute(t, o.DB(), `CHECKPOINT`)
		if status := scan(t, o, `SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1`, table(o)); status != "lost" {
			return errors.New(status)
		}
		return nil
	})
	r := readAgain(t, f)
	row(t, o.DB(), o, 1)
	r.expect(t, 1)
}

// Publication or slot are dropped while the feed is read: the next one makes both anew.
func TestFeedMakesADroppedPublicationAnew(t *testing.T) {
	t.Parallel()
	target := pgtest.Database(t)
	o := open(t, target)
	f := newFeed(t, target, o, cdc.Config{})
	r := read(t, f).ready(t)
	execute(t, o.DB(), `DROP PUBLICATION `+table(o))
	row(t, o.DB(), o, 1)
	if err := r.wait(); !errors.Is(err, outbox.ErrDatabase) {
		t.Fatalf("Tail = %v, want ErrDatabase", err)
	}
	r = readAgain(t, f)
	row(t, o.DB(), o, 2)
	r.expect(t, 2)
	execute(t, o.DB(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, table(o))
	if err := r.wait(); !errors.Is(err, outbox.ErrDatabase) {
		t.Fatalf("Tail = %v, want ErrDatabase", err)
	}
	bustest.Eventually(t, within, func() error { return f.Drop(t.Context()) })
	r = readAgain(t, f)
	row(t, o.DB(), o, 3)
	r.expect(t, 3)
}

// Making a slot waits for open transactions; it ends when it is told to.
func TestFeedEndsWhileItWaitsForItsSlot(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{})
	target := s.Database(t)
	o := open(t, target)
	tx := begin(t, o)
	row(t, tx, o, 1)
	r := read(t, newFeed(t, target, o, cdc.Config{}))
	bustest.Eventually(t, within, func() bool {
		return scan(t, o, `SELECT active::text FROM pg_replication_slots WHERE slot_name = $1`, table(o)) == "true"
	})
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}
