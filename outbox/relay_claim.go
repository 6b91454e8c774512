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
	leasing, cancel := context.WithTimeout(ctx, r.cfg.Lease) // later they are not worth having
	defer cancel()
	b = batch{owner: rand.Text(), claimed: time.Now()}
	ids, full, err := r.lease(leasing, b.owner, age)
	if err == nil && len(ids) > 0 {
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Lease) // to give them back if ctx has ended
		defer cancel()
		b.rows, err = r.read(reading, r.outbox.sql.relay.fetch, ids, b.owner)
	}
	if err != nil {
		return batch{}, false, fmt.Errorf("%w: claim: %w", ErrDatabase, err)
	}
	return b, full, nil
}

// lease returns ids of rows, some of which may not be the owner's.
func (r *Relay) lease(ctx context.Context, owner string, age time.Duration) (ids []int64, full bool, err error) {
	say, most, ms := r.outbox.sql.relay, r.pace.size(r.cfg.Batch), r.cfg.Lease.Milliseconds()
	if r.outbox.cfg.Dialect == SQLite {
		// To look first costs no lock, and what is large is written as few times as can be.
		if ids, full, err = r.list(ctx, most, say.peek, most); err != nil || len(ids) == 0 {
			return nil, false, err
		}
		list, err := json.Marshal(ids)
		if err != nil {
			return nil, false, err
		}
		_, err = r.outbox.db.ExecContext(ctx, say.claim, string(list), owner, ms)
		return ids, full, err
	}
	if age > 0 {
		return r.list(ctx, most, r.tail.sql.claim, most, owner, ms, age.Milliseconds())
	}
	return r.list(ctx, most, say.claim, most, owner, ms)
}

// list reads ids and sizes, as far as there is memory for the rows but at least
// one. full says that there may be more.
func (r *Relay) list(ctx context.Context, most int, statement string, args ...any) (ids []int64, full bool, err error) {
	found, err := r.outbox.db.QueryContext(ctx, statement, args...)
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

// read returns the rows that the statement finds for ids and arg.
func (r *Relay) read(ctx context.Context, statement string, ids []int64, arg any) (rows []row, err error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	found, err := r.outbox.db.QueryContext(ctx, statement, string(list), arg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	rows = make([]row, 0, len(ids))
	for found.Next() {
		var r row
		var age int64
		if err := found.Scan(&r.id, &r.messageID, &r.subject, &r.key, &r.headers, &r.data, &r.attempts, &r.story, &age); err != nil {
			return nil, err
		}
		r.age = time.Duration(age) * time.Millisecond
		rows = append(rows, r)
	}
	return rows, found.Err()
}
