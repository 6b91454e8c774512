package outbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// straggling is how long the feed waits for another acknowledgement of a batch.
// Rows that take longer are leased, so that it can go on with others.
const straggling = 200 * time.Millisecond

// send publishes those of the rows that are the feed's. It returns those that
// are so still: there was no room for them, or nobody to publish them to. After an
// error, which matches [ErrDatabase], it is not written down what became of them.
func (t *tail) send(ctx context.Context, ids []int64) (left []int64, err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	b := batch{claimed: time.Now()}
	list, err := json.Marshal(ids)
	if err == nil {
		b.rows, err = t.relay.read(ctx, t.sql.fetch, string(list), maxBytes)
	}
	if err == nil {
		ids, left = fitting(ids, b.rows)
		err = t.yield(ctx, ids, b.rows)
	}
	if err == nil && len(b.rows) > 0 {
		var again []int64
		again, err = t.deliver(ctx, b)
		left = append(again, left...)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: feed: %w", ErrDatabase, err)
	}
	return left, nil
}

// fitting parts ids behind the last of the rows if there was no room for more.
func fitting(ids []int64, rows []row) (told, left []int64) {
	if sizeOf(rows) < maxBytes {
		return ids, nil
	}
	n := slices.Index(ids, rows[len(rows)-1].id) + 1
	return ids[:n], slices.Clone(ids[n:])
}

// yield makes the others of ids the claims': rows of their keys before them are.
func (t *tail) yield(ctx context.Context, ids []int64, rows []row) error {
	if len(rows) == len(ids) {
		return nil
	}
	ours := make(map[int64]bool, len(rows))
	for _, r := range rows {
		ours[r.id] = true
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return ours[id] })
	yielded, err := t.relay.outbox.change(ctx, t.sql.yield, others) // most often they are published
	if yielded > 0 {
		t.relay.look()
	}
	return err
}

// change runs a statement on ids and returns how many rows it changed.
func (o *Outbox) change(ctx context.Context, statement string, ids []int64) (int64, error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, err
	}
	result, err := o.db.ExecContext(ctx, o.render(statement), string(list))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// deliver publishes rows and settles them. It returns those with which nothing
// has happened, because nobody was there to take them.
func (t *tail) deliver(ctx context.Context, b batch) (again []int64, err error) {
	results := t.relay.start(ctx, b, &t.work)
	ready := prompt(results, len(b.rows))
	if err := t.lease(ctx, b, results, ready); err != nil {
		return nil, err
	}
	if down := ctx.Err() != nil || t.relay.bus.Health() != nil; down {
		// An outage is no reason to write anything.
		failed := make(map[*row]bool, len(ready))
		ready = slices.DeleteFunc(ready, func(res result) bool {
			failed[res.row] = res.err != nil && classOf(res.err) == ""
			return failed[res.row]
		})
		for i := range b.rows {
			if failed[&b.rows[i]] {
				again = append(again, b.rows[i].id)
			}
		}
	}
	if !t.relay.settle(ctx, b, ready) {
		return nil, errors.New("rows are published and not marked")
	}
	t.relay.metrics.duration.Observe(time.Since(b.claimed).Seconds())
	return again, nil
}

// prompt returns results until there are n, or none comes any more for a while.
func prompt(results <-chan result, n int) []result {
	ready := make([]result, 0, n)
	enough := time.NewTimer(straggling)
	defer enough.Stop()
	for len(ready) < n {
		select {
		case res := <-results:
			ready = append(ready, res)
			enough.Reset(straggling)
		case <-enough.C:
			return ready
		}
	}
	return ready
}

// lease leases the rows of b whose results are not there yet. Others of their
// keys are the claims' until those are there.
func (t *tail) lease(ctx context.Context, b batch, results <-chan result, ready []result) error {
	if len(ready) == len(b.rows) {
		return nil
	}
	there := make(map[*row]bool, len(ready))
	for _, res := range ready {
		there[res.row] = true
	}
	var ids []int64
	for i := range b.rows {
		if r := &b.rows[i]; !there[r] {
			ids = append(ids, r.id)
		}
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	slow := batch{owner: rand.Text(), claimed: time.Now(), rows: b.rows}
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout) // they are on their way
	defer cancel()
	r := t.relay
	if _, err := r.outbox.db.ExecContext(writing, t.sql.lease, string(list), slow.owner, r.cfg.Lease.Milliseconds()); err != nil {
		return err
	}
	r.inFlight.Add(int64(len(ids)))
	t.work.Go(func() { r.await(ctx, slow, results, len(ids)) })
	return nil
}
