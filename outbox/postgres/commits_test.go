package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/pgtest"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres"
)

// One transaction's commit is held up, as a slow disk would: it waits for a standby.
func TestCommits_do_not_wait_for_each_other(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pg.Config{Settings: map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"}})
	o := made(t, s.Database(t))
	db := o.DB()
	arrive := sync.OnceFunc(func() { // the standby, or who waits for it waits for ever
		for _, do := range []string{`ALTER SYSTEM SET synchronous_standby_names = ''`, `SELECT pg_reload_conf()`} {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), do); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(arrive)
	add := func(ctx context.Context, id, waiting string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err = tx.ExecContext(ctx, "SET LOCAL synchronous_commit = "+waiting); err == nil {
			err = o.Add(ctx, tx, seal(t, o, id))
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	held := make(chan error, 1)
	go func() { held <- add(t.Context(), "held", "on") }()
	bustest.Eventually(t, time.Minute, func() bool {
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n)
		return err == nil && n == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := add(ctx, "free", "local"); err != nil {
		t.Errorf("a commit beside one that is held up: %v", err)
	}
	arrive()
	must(t, <-held)
}

func TestOpen_keeps_its_connections(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(pgtest.Database(t))
	must(t, err)
	defer func() { must(t, db.Close()) }()
	limit := db.Stats().MaxOpenConnections
	if limit < 16 || limit > 30 {
		t.Errorf("at most %d connections, want room for three processes in a server's 100", limit)
	}
	for range 3 {
		var work sync.WaitGroup
		all := make(chan struct{})
		var open sync.WaitGroup
		open.Add(limit)
		for range limit {
			work.Go(func() {
				tx, err := db.BeginTx(t.Context(), nil)
				open.Done()
				if err != nil {
					t.Error(err)
					return
				}
				<-all
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			})
		}
		open.Wait()
		close(all)
		work.Wait()
	}
	if s := db.Stats(); s.OpenConnections != limit || s.MaxIdleClosed != 0 {
		t.Errorf("%d connections are open and %d were closed for being idle, want %d and none", s.OpenConnections, s.MaxIdleClosed, limit)
	}
}

// More handlers than connections: the ledger has to read and renew meanwhile.
func TestHandlers_leave_connections_to_the_ledger(t *testing.T) {
	t.Parallel()
	o := made(t, pgtest.Database(t))
	const limit = 4
	o.DB().SetMaxOpenConns(limit)
	l, err := outbox.NewLedger(o, bustest.NewBus(t), outbox.LedgerConfig{})
	must(t, err)
	const consumer event.Consumer = "shipping"
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan error, 2*limit)
	for i := range 2 * limit {
		c, err := l.Claim(ctx, dedup.Request{Consumer: consumer, Key: event.NewEventKey("/shop", fmt.Sprint(i)), Lease: time.Minute})
		must(t, err)
		go func() {
			_, err := outbox.Tx(c.Transaction.Context(ctx))
			begun <- err
		}()
		t.Cleanup(func() { must(t, l.Release(context.WithoutCancel(ctx), c, nil, nil)) })
	}
	for range limit - 1 {
		must(t, <-begun)
	}
	reading, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if _, _, err := l.Mark(reading, consumer, "x"); err != nil {
		t.Errorf("read a mark: %v", err)
	}
	cancel()
	for range limit + 1 {
		if err := <-begun; !errors.Is(err, outbox.ErrDatabase) || !errors.Is(err, context.Canceled) {
			t.Errorf("who waits is told %v", err)
		}
	}
}
