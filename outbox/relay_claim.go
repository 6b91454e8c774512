package outbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxBytes bounds the data of one batch in memory, but for the last row.
const maxBytes = 4 << 20

// batch are rows that one claim has leased, or that the feed has told.
type batch struct {
	owner   string    // a random name of the claim; "" for rows of the feed, which nobody leases
	claimed time.Time // not later than the beginning of the lease
	rows    []row     // by id
}

// claim leases rows and reads them. Rows that have no due_at it takes only when they
// are older than age. full says that there may be more.
func (r *Relay) claim(ctx context.Context, age time.Duration) (b batch, full bool, err error) {
	leasing, cancel := lingering(ctx, r.cfg.Lease) // after that the lease is over
	defer cancel()
	b = batch{owner: rand.Text(), claimed: time.Now()}
	most := r.pace.size(r.cfg.Batch)
	if r.outbox.cfg.Dialect == SQLite {
		b.rows, full, err = r.claimSQLite(leasing, b.owner, most)
	} else {
		statement, args := r.outbox.sql.relay.claim, []any{most, b.owner, r.cfg.Lease.Milliseconds()}
		if age > 0 {
			statement, args = r.feed.sql.claim, append(args, age.Milliseconds())
		}
		b.rows, err = r.read(leasing, statement, args...)
		full = len(b.rows) == most || sizeOf(b.rows) >= maxBytes
	}
	if err != nil {
		return batch{}, false, fmt.Errorf("%w: claim: %w", ErrDatabase, err)
	}
	return b, full, nil
}

// lingering returns a context with a timeout that lives on for a moment after ctx has
// ended: the relay has to know which rows it has leased, to give them back.
func lingering(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	const moment = 3 * time.Second
	longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-longer.Done():
		case <-time.After(moment):
			cancel()
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// claimSQLite finds rows, leases them and reads them, in three statements. To find
// them first takes no lock, and leases no more rows than fit into memory.
func (r *Relay) claimSQLite(ctx context.Context, owner string, most int) (rows []row, full bool, err error) {
	statements := r.outbox.sql.relay
	ids, full, err := r.list(ctx, most)
	if err != nil || len(ids) == 0 {
		return nil, false, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, false, err
	}
	if _, err = r.outbox.db.ExecContext(ctx, statements.claim, string(list), owner, r.cfg.Lease.Milliseconds()); err != nil {
		return nil, false, err
	}
	rows, err = r.read(ctx, statements.fetch, string(list), owner)
	return rows, full, err
}

// list returns the ids of up to most rows that can be claimed, and of no more than
// maxBytes of data. full says that there may be more.
func (r *Relay) list(ctx context.Context, most int) (ids []int64, full bool, err error) {
	found, err := r.outbox.db.QueryContext(ctx, r.outbox.sql.relay.peek, most, time.Now().UnixMilli()) // SQLite has no other clock
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for total := 0; found.Next(); {
		var id int64
		var size int
		if err := found.Scan(&id, &size); err != nil {
			return nil, false, err
		}
		if total >= maxBytes {
			return ids, true, nil
		}
		ids, total = append(ids, id), total+size
	}
	return ids, len(ids) == most, found.Err()
}

// read returns the rows that a statement selects.
func (r *Relay) read(ctx context.Context, statement string, args ...any) (rows []row, err error) {
	found, err := r.outbox.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	for found.Next() {
		var r row
		var age int64
		if err := found.Scan(&r.id, &r.messageID, &r.subject, &r.key, &r.headers, &r.data, &r.attempts, &r.story, &age, &r.consumer); err != nil {
			return nil, err
		}
		r.age = time.Duration(age) * time.Millisecond
		rows = append(rows, r)
	}
	return rows, found.Err()
}

func sizeOf(rows []row) (bytes int) {
	for _, r := range rows {
		bytes += len(r.data)
	}
	return bytes
}
