package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// slow is a database whose syncs wait for a word of the test, and their writers.
func slow(t *testing.T) (db *sql.DB, w *writers, begun, end chan struct{}) {
	t.Helper()
	db, err := Open(filepath.Join(t.TempDir(), "x.db"))
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE TABLE t (n)")
	ok(t, err)
	conn, err := db.Conn(t.Context())
	ok(t, err)
	ok(t, conn.Raw(func(c any) error {
		w = c.(*connection).writers
		return nil
	}))
	ok(t, conn.Close())
	begun, end = make(chan struct{}), make(chan struct{})
	w.syncs.mu.Lock()
	defer w.syncs.mu.Unlock()
	disk := w.syncs.sync
	w.syncs.sync = func() error {
		begun <- struct{}{}
		<-end
		return disk()
	}
	return db, w, begun, end
}

// insert is how each way to write does it.
func insert(ctx context.Context, db *sql.DB, i int) error {
	switch i % 3 {
	case 0:
		_, err := db.ExecContext(ctx, "INSERT INTO t VALUES ($1)", i)
		return err
	case 1:
		return db.QueryRowContext(ctx, "INSERT INTO t VALUES ($1) RETURNING n", i).Scan(&i)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, "INSERT INTO t VALUES ($1)", i); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func TestCommits_share_a_sync(t *testing.T) {
	t.Parallel()
	db, w, begun, end := slow(t)
	const n = 12
	var returned atomic.Int64
	var work sync.WaitGroup
	write := func(i int) {
		work.Go(func() {
			if err := insert(t.Context(), db, i); err != nil {
				t.Error(err)
			}
			returned.Add(1)
		})
	}
	write(0)
	<-begun // the disk is busy with the first
	for i := 1; i < n; i++ {
		write(i)
	}
	bustest.Eventually(t, time.Minute, func() bool {
		w.syncs.mu.Lock()
		defer w.syncs.mu.Unlock()
		return w.syncs.asked-w.syncs.served == n // so their turns are over, and all have asked
	})
	if got := returned.Load(); got != 0 {
		t.Errorf("%d writers have returned before a sync", got)
	}
	end <- struct{}{}
	<-begun // one for all others, which did not begin before they had committed
	if got := returned.Load(); got > 1 {
		t.Errorf("%d writers have returned after a sync that began before they committed", got)
	}
	end <- struct{}{}
	work.Wait()
}

func TestTransactions_wait_for_what_they_have_read(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*sql.TxOptions{"that reads": {ReadOnly: true}, "that is rolled back": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _, begun, end := slow(t)
			written := make(chan error, 1)
			go func() { written <- insert(t.Context(), db, 0) }()
			<-begun
			tx, err := db.BeginTx(t.Context(), opts)
			ok(t, err)
			var n int
			ok(t, tx.QueryRowContext(t.Context(), "SELECT count(*) FROM t").Scan(&n))
			if n != 1 {
				t.Fatalf("%d rows", n)
			}
			ended := make(chan error, 1)
			go func() { ended <- tx.Rollback() }()
			end <- struct{}{}
			<-begun
			select {
			case err := <-ended:
				t.Errorf("it has ended before the disk has what it read: %v", err)
			default:
			}
			end <- struct{}{}
			ok(t, <-ended)
			ok(t, <-written)
		})
	}
}

func TestNobody_writes_after_a_sync_that_failed(t *testing.T) {
	t.Parallel()
	db, w, _, _ := slow(t)
	broken := errors.New("no such disk")
	w.syncs.sync = func() error { return broken }
	for i := range 3 {
		if err := insert(t.Context(), db, i); !errors.Is(err, ErrDisk) || !errors.Is(err, broken) {
			t.Errorf("the commit says %v", err)
		}
	}
	w.syncs.sync = func() error { return nil } // and the next one would succeed
	for i := range 3 {
		if err := insert(t.Context(), db, i); !errors.Is(err, ErrDisk) {
			t.Errorf("a later writer is told %v", err)
		}
	}
	var n int
	ok(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM t").Scan(&n))
}

func TestSync_of_a_database_behind_a_link(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "x.db"), link); err != nil {
		t.Skip("this file system has no links: ", err)
	}
	first, err := Open(filepath.Join(dir, "x.db"))
	ok(t, err)
	ok(t, first.Close())
	db, err := Open(link)
	ok(t, err)
	defer func() { ok(t, db.Close()) }()
	_, err = db.ExecContext(t.Context(), "CREATE TABLE t (n)")
	ok(t, err)
	// What lies beside the link is not the log.
	ok(t, os.Mkdir(link+"-wal", 0o700))
	ok(t, insert(t.Context(), db, 0))
}

func TestStatements_that_may_write_wait_for_the_disk(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"PRAGMA user_version = 2", "SELECT 1; INSERT INTO t VALUES (1)"} {
		db, _, begun, end := slow(t)
		ended := make(chan error, 1)
		go func() {
			_, err := db.ExecContext(t.Context(), query)
			ended <- err
		}()
		select {
		case <-begun:
			end <- struct{}{}
			ok(t, <-ended)
		case err := <-ended:
			t.Errorf("%s has ended without the disk: %v", query, err)
		}
	}
}
