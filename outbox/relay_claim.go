package outbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxBytes is how much data one batch has in memory.
const maxBytes = 4 << 20

// batch is what one claim took.
type batch struct {
	owner   string    // a random name of this claim
	claimed time.Time // not later than the beginning of the lease
	rows    []row     // by id
}

// claim leases rows and reads them; rows without a time only if they are so old.
// full says that there may be more.
func (r *Relay) claim(ctx context.Context, age time.Duration) (b batch, full bool, err error) {
	leasing, cancel := lingering(ctx, r.cfg.Lease) // later they are not worth having
	defer cancel()
	b = batch{owner: rand.Text(), claimed: time.Now()}
	most := r.pace.size(r.cfg.Batch)
	if r.outbox.cfg.Dialect == SQLite {
		b.rows, full, err = r.claimListed(leasing, b.owner, most)
	} else {
		say, args := r.outbox.sql.relay.claim, []any{most, b.owner, r.cfg.Lease.Milliseconds()}
		if age > 0 {
			say, args = r.tail.sql.claim, append(args, age.Milliseconds())
		}
		b.rows, err = r.read(leasing, say, args...)
		full = len(b.rows) == most || sizeOf(b.rows) >= maxBytes
	}
	if err != nil {
		return batch{}, false, fmt.Errorf("%w: claim: %w", ErrDatabase, err)
	}
	return b, full, nil
}

// lingering is a context with a timeout that lives on for a moment when ctx ends:
// what has been leased is to be known, so that it can be given back.
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

// claimListed is SQLite's way: to look first costs no lock, and what is large is
// written as few times as can be.
func (r *Relay) claimListed(ctx context.Context, owner string, most int) (rows []row, full bool, err error) {
	say := r.outbox.sql.relay
	ids, full, err := r.list(ctx, most)
	if err != nil || len(ids) == 0 {
		return nil, false, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, false, err
	}
	if _, err = r.outbox.db.ExecContext(ctx, say.claim, string(list), owner, r.cfg.Lease.Milliseconds()); err != nil {
		return nil, false, err
	}
	rows, err = r.read(ctx, say.fetch, string(list), owner)
	return rows, full, err
}

// list returns ids of rows that can be claimed, as far as there is memory for
// the rows but at least one. full says that there may be more.
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

// read returns the rows that a statement finds.
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
