package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Stats says what is in an outbox, but for what is published.
type Stats struct {
	Pending    int64 // to be published
	Waiting    int64 // of the pending ones: those whose next try is not due
	Processing int64 // being published
	Parked     int64 // given up: DEAD_LETTER
	// Oldest is how long the oldest row that is pending or being published has
	// been there, by the database's clock; 0 when there is none.
	Oldest time.Duration
}

// Stats counts rows; it reads those that are open or parked. The error matches
// [ErrDatabase].
func (o *Outbox) Stats(ctx context.Context) (Stats, error) {
	s, err := o.stats(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("%w: stats: %w", ErrDatabase, err)
	}
	return s, nil
}

func (o *Outbox) stats(ctx context.Context) (s Stats, err error) {
	rows, err := o.db.QueryContext(ctx, o.render(`
		SELECT status, count(*), count(CASE WHEN due_at > {now} THEN 1 END), {unix {now}} - {unix MIN(created_at)} FROM {outbox}
		WHERE {open} GROUP BY status
		UNION ALL SELECT 'DEAD_LETTER', count(*), 0, 0 FROM {outbox} WHERE {parked}`))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var status Status
		var n, later, age int64
		if err := rows.Scan(&status, &n, &later, &age); err != nil {
			return s, err
		}
		switch status {
		case Pending:
			s.Pending, s.Waiting = n, later
		case Processing:
			s.Processing = n
		case DeadLetter:
			s.Parked = n
			continue
		case Published: // not asked for
		}
		s.Oldest = max(s.Oldest, time.Duration(age)*time.Millisecond)
	}
	return s, rows.Err()
}

// render is [render] for this outbox.
func (o *Outbox) render(statement string) string {
	return render(o.cfg.Dialect, o.cfg.Prefix, statement)
}
