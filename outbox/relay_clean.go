package outbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/farandole/farandole/internal/backoff"
)

// cleanBatch is how many rows or marks one statement deletes. Others wait for it.
const cleanBatch = 500

// clean deletes, from time to time, the rows that were published longer ago than the
// retention, and the inbox's marks that have expired.
func (r *Relay) clean(ctx context.Context) {
	every := min(max(r.cfg.Retention/10, time.Second), 10*time.Second)
	for backoff.Wait(ctx, backoff.Around(every)) {
		err := r.cleanOnce(ctx)
		switch {
		case err == nil:
			r.health.Clear(partClean)
		case ctx.Err() == nil:
			r.trouble(partClean, fmt.Errorf("%w: clean up: %w", ErrDatabase, err))
		}
	}
}

func (r *Relay) cleanOnce(ctx context.Context) error {
	if err := r.cleanRows(ctx); err != nil {
		return err
	}
	for {
		result, err := r.outbox.db.ExecContext(ctx, r.outbox.sql.relay.forget, cleanBatch)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n < cleanBatch {
			return err
		}
	}
}

// cleanRows goes through the rows from the lowest id on until it deletes nothing and
// meets rows that are to be kept: rows were published about in the order of their ids.
// There is no index by time, which would cost as much as all else that the relay writes.
func (r *Relay) cleanRows(ctx context.Context) error {
	keep := r.cfg.Retention.Milliseconds()
	for after := int64(math.MinInt64); ; {
		var rows, last, young int64
		if err := r.outbox.db.QueryRowContext(ctx, r.outbox.sql.relay.count, after, cleanBatch, keep).Scan(&rows, &last, &young); err != nil {
			return err
		}
		if rows == 0 {
			return nil
		}
		result, err := r.outbox.db.ExecContext(ctx, r.outbox.sql.relay.clean, after, last, keep)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 && young > 0 {
			return err
		}
		after = last
	}
}
