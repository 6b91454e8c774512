package main

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

// outboxTableSizes tell what is left of many published rows.
type outboxTableSizes struct {
	Published int     `json:"published"`
	Rows      int     `json:"rows"`  // at the end
	Bytes     int     `json:"bytes"` // of the table with its indexes; of SQLite's whole file
	PerSecond float64 `json:"per_second"`
}

// backlog is how far the writer is ahead of the relay at most.
const backlog = 10_000

func (b *bench) outboxSize(ctx context.Context, connect bus.Config, e engine, f *outboxFigures) (err error) {
	s, err := openShop(ctx, connect, e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	begun := time.Now()
	// A retention of seconds stands for hours: the writer is as much faster than a service.
	cfg := outbox.RelayConfig{Retention: 5 * time.Second}
	err = s.relaying(ctx, cfg, func(ctx context.Context) error {
		for from := 0; from < b.published; from += backlog {
			n := min(backlog, b.published-from)
			if err := s.fill(ctx, from, n); err != nil {
				return err
			}
			if err := s.drained(ctx, from+n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	size := outboxTableSizes{Published: b.published, PerSecond: float64(b.published) / time.Since(begun).Seconds()}
	query := `SELECT (SELECT count(*) FROM outbox), page_count * page_size FROM pragma_page_count(), pragma_page_size()`
	if s.Dialect == outbox.Postgres {
		query = `SELECT (SELECT count(*) FROM outbox), pg_total_relation_size('outbox')`
	}
	if err := s.DB.QueryRowContext(ctx, query).Scan(&size.Rows, &size.Bytes); err != nil {
		return err
	}
	f.Size = size
	b.say("outbox %s: %s rows published, %s of them in a table of %s", e.name, terminal.Number(size.Published), terminal.Number(size.Rows), terminal.Size(size.Bytes))
	return nil
}
