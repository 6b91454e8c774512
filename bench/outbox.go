package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/outbox"
)

// outboxFigures are of one database.
type outboxFigures struct {
	Database string           `json:"database"`
	Insert   insertFigures    `json:"insert"`
	Drain    drainFigures     `json:"drain"`
	Latency  []outboxLatency  `json:"commit_to_stream_us"`
	Size     outboxTableSizes `json:"size"`
}

const (
	nameSQLite   = "SQLite"
	namePostgres = "Postgres"
)

// engine makes fresh databases of one kind.
type engine struct {
	name string
	make func(ctx context.Context) (target string, err error)
}

// engines are those that are there, until stop.
func (b *bench) engines(ctx context.Context) (all []engine, stop func() error, err error) {
	all = []engine{{nameSQLite, b.sqliteFile}}
	// As an operator runs it: a commit is on the disk.
	server, err := pg.Start(ctx, pg.Config{Durable: true})
	switch {
	case errors.Is(err, pg.ErrMissing):
		b.say("Postgres is not installed, its figures are missing")
		return all, func() error { return nil }, nil
	case err != nil:
		return nil, nil, err
	}
	return append(all, engine{namePostgres, func(ctx context.Context) (string, error) {
		name, err := server.CreateDatabase(ctx)
		return server.URL(name), err
	}}), server.Close, nil
}

// outbox measures package outbox on each database that is there.
func (b *bench) outbox(ctx context.Context) (err error) {
	connect, err := b.single(ctx)
	if err != nil {
		return err
	}
	engines, stop, err := b.engines(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, e := range engines {
		f := outboxFigures{Database: e.name}
		for _, step := range []func(context.Context, bus.Config, engine, *outboxFigures) error{
			b.outboxInserts, b.outboxDrain, b.outboxLatencies, b.outboxSize,
		} {
			if err := step(ctx, connect, e, &f); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
		b.results.Outbox = append(b.results.Outbox, f)
	}
	return b.printOutbox()
}

func (b *bench) sqliteFile(context.Context) (string, error) {
	dir, err := os.MkdirTemp(b.dir, "sqlite-")
	return filepath.Join(dir, "shop.db"), err
}

// shop is a service's database, and a stage for its events.
type shop struct {
	*database.Database
	target string
	box    *outbox.Outbox
	stage  *hopbench.Stage
}

func openShop(ctx context.Context, connect bus.Config, e engine) (s *shop, err error) {
	target, err := e.make(ctx)
	if err != nil {
		return nil, err
	}
	s = &shop{target: target}
	if s.Database, err = database.Open(target); err != nil {
		return nil, err
	}
	if s.stage, err = hopbench.Open(ctx, connect, hopbench.Prefix(), 1); err != nil {
		return nil, errors.Join(err, s.Database.Close())
	}
	s.box, err = s.Outbox(outbox.Config{Names: s.stage.Bus.Names(), Source: s.stage.Bus.Source()})
	if err == nil {
		err = s.box.Migrate(ctx)
	}
	if err == nil {
		_, err = s.DB.ExecContext(ctx, `CREATE TABLE orders (order_id varchar(40) PRIMARY KEY, status varchar(20) NOT NULL, total bigint NOT NULL)`)
	}
	if err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *shop) close(ctx context.Context) error {
	return errors.Join(s.stage.Close(ctx), s.Database.Close())
}

// order commits the i-th order, with its event if there is to be one.
func (s *shop) order(ctx context.Context, i int, withEvent bool) error {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (order_id, status, total) VALUES ($1, 'placed', 2500)`, "ord-"+strconv.Itoa(i)); err != nil {
		return err
	}
	if withEvent {
		e, err := s.event(i)
		if err != nil {
			return err
		}
		if err := s.box.Add(ctx, tx, e); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *shop) event(i int) (event.Event, error) {
	d := hopbench.Draft(i)
	d.Type = hopbench.Out.Type() // what the stage counts
	return s.box.Seal(d)
}

// fill commits events first to first+n-1 in transactions of a thousand.
func (s *shop) fill(ctx context.Context, first, n int) error {
	const together = 1000
	for from := first; from < first+n; from += together {
		events := make([]event.Event, min(together, first+n-from))
		for i := range events {
			var err error
			if events[i], err = s.event(from + i); err != nil {
				return err
			}
		}
		tx, err := s.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := s.box.Add(ctx, tx, events...); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// relaying runs f beside a relay.
func (s *shop) relaying(ctx context.Context, cfg outbox.RelayConfig, f func(context.Context) error) error {
	relay, err := outbox.NewRelay(s.box, s.stage.Bus, cfg)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	err = f(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// drained waits until n events are stored and no row is left to be published.
func (s *shop) drained(ctx context.Context, n int) error {
	for {
		stream, err := s.stage.Bus.JetStream().Stream(ctx, s.stage.Bus.Names().EventsStream())
		if err != nil {
			return err
		}
		if stream.CachedInfo().State.Msgs >= uint64(n) { //nolint:gosec // a count
			stats, err := s.box.Stats(ctx)
			if err != nil {
				return err
			}
			if stats.Pending+stats.Processing == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (b *bench) printOutbox() error {
	if err := b.title("outbox, commits on disk, median of %d", b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">orders/s", ">with outbox", ">ratio", ">drained rows/s", ">to raw", ">table", ">rows in it")
	for _, f := range b.results.Outbox {
		plain, with := median(f.Insert.Without), median(f.Insert.With)
		table.Row(f.Database, terminal.Number(int(plain)), terminal.Number(int(with)), ratio(with, plain),
			terminal.Number(int(median(f.Drain.Relay))), ratio(median(f.Drain.Relay), median(f.Drain.Raw)),
			terminal.Size(f.Size.Bytes), terminal.Number(f.Size.Rows))
	}
	if _, err := table.WriteTo(b.out); err != nil {
		return err
	}
	if err := b.title("from commit to stored in the stream, ms"); err != nil {
		return err
	}
	table = terminal.NewTable("", "woken by", "", ">p50", ">p99")
	for _, f := range b.results.Outbox {
		for _, l := range f.Latency {
			table.Row(f.Database, l.WokenBy, l.Load, fmt.Sprintf("%.1f", l.P50/1000), fmt.Sprintf("%.1f", l.P99/1000))
		}
	}
	_, err := table.WriteTo(b.out)
	return err
}
