package cdc

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farandole/farandole/outbox"
)

// lookEvery is how often the slot is looked at while it is read.
const lookEvery = 2 * time.Second

// slot is what the server shows of a replication slot.
type slot struct {
	name   string // "": there is none
	here   bool   // it belongs to this database
	plugin string
	active bool   // somebody reads it
	status string // "lost" when the server has removed log that it needs
	// lag is how many bytes of log were written after its position.
	lag int64
	// retained is how many bytes of log the server keeps for it.
	retained int64
}

// look asks the server about the slot, and remembers the answer.
func (f *Feed) look(ctx context.Context) (slot, error) {
	var s slot
	err := f.o.DB().QueryRowContext(ctx, `SELECT slot_name, coalesce(database = current_database(), false), coalesce(plugin, ''), active,
			coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint,
			coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, f.cfg.Slot).
		Scan(&s.name, &s.here, &s.plugin, &s.active, &s.status, &s.lag, &s.retained)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return slot{}, explain(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slot = s
	return s, nil
}

// observe looks at the slot until ctx ends.
func (f *Feed) observe(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if _, err := f.look(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// register registers the slot's gauges.
func (f *Feed) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, g := range []struct {
		name, help string
		value      func(slot) int64
	}{
		{"farandole_outbox_slot_lag_bytes", "Log written since the replication slot's position.", func(s slot) int64 { return s.lag }},
		{"farandole_outbox_slot_retained_bytes", "Log that the server keeps for the replication slot.", func(s slot) int64 { return s.retained }},
		{"farandole_outbox_slot_active", "1 while a relay, this or another, reads the replication slot.", func(s slot) int64 {
			if s.active {
				return 1
			}
			return 0
		}},
	} {
		if err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: g.name, Help: g.help, ConstLabels: prometheus.Labels{"slot": f.cfg.Slot},
		}, func() float64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return float64(g.value(f.slot))
		})); err != nil {
			return fmt.Errorf("%w: metrics: %w", outbox.ErrConfig, err)
		}
	}
	return nil
}
