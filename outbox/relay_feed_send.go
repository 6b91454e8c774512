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

// nextAckWithin is how long the feed waits for another acknowledgement of a batch. Rows
// that take longer it leases, and goes on with others.
const nextAckWithin = 200 * time.Millisecond

// send publishes those of the rows that are the feed's. It returns the ids of those
// that are the feed's still, because there was no room for them, or nobody to publish
// them to. The error matches [ErrDatabase]: what became of the rows is not written down.
func (f *feedRelay) send(ctx context.Context, ids []int64) (left []int64, err error) {
	f.turn.Lock()
	defer f.turn.Unlock()
	b := batch{claimed: time.Now()}
	list, err := json.Marshal(ids)
	if err == nil {
		b.rows, err = f.relay.read(ctx, f.sql.fetch, string(list), maxBytes)
	}
	if err == nil {
		ids, left = fitting(ids, b.rows)
		err = f.handOver(ctx, ids, b.rows)
	}
	if err == nil && len(b.rows) > 0 {
		var again []int64
		again, err = f.deliver(ctx, b)
		left = append(again, left...)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: feed: %w", ErrDatabase, err)
	}
	return left, nil
}

// fitting splits ids behind the last of the rows that were read, if there was no memory
// for more of them.
func fitting(ids []int64, rows []row) (read, left []int64) {
	if sizeOf(rows) < maxBytes {
		return ids, nil
	}
	n := slices.Index(ids, rows[len(rows)-1].id) + 1
	return ids[:n], slices.Clone(ids[n:])
}

// handOver hands those of ids over to the claims that are not among rows: an earlier
// row of their key is there. Most often there are none but published ones.
func (f *feedRelay) handOver(ctx context.Context, ids []int64, rows []row) error {
	if len(rows) == len(ids) {
		return nil
	}
	ours := make(map[int64]bool, len(rows))
	for _, r := range rows {
		ours[r.id] = true
	}
	others := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return ours[id] })
	list, err := json.Marshal(others)
	if err != nil {
		return err
	}
	result, err := f.relay.outbox.db.ExecContext(ctx, f.sql.handOver, string(list))
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if n > 0 {
		f.relay.claimSoon()
	}
	return err
}

// deliver publishes rows and settles them. It returns the ids of those that met an
// outage: they are as before.
func (f *feedRelay) deliver(ctx context.Context, b batch) (again []int64, err error) {
	results := f.relay.start(ctx, b, &f.work)
	ready := takeWhilePrompt(results, len(b.rows))
	if err := f.lease(ctx, b, results, ready); err != nil {
		return nil, err
	}
	if down := ctx.Err() != nil || f.relay.bus.Health() != nil; down {
		// For an outage nothing is written.
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
	if !f.relay.settle(ctx, b, ready) {
		return nil, errors.New("rows are published and not marked")
	}
	f.relay.metrics.duration.Observe(time.Since(b.claimed).Seconds())
	return again, nil
}

// takeWhilePrompt returns results until there are n, or no more comes for nextAckWithin.
func takeWhilePrompt(results <-chan result, n int) []result {
	ready := make([]result, 0, n)
	enough := time.NewTimer(nextAckWithin)
	defer enough.Stop()
	for len(ready) < n {
		select {
		case res := <-results:
			ready = append(ready, res)
			enough.Reset(nextAckWithin)
		case <-enough.C:
			return ready
		}
	}
	return ready
}

// lease leases the rows of b whose results have not come yet, and awaits them beside the
// next batches. Until then later rows of their keys are handed over to the claims.
func (f *feedRelay) lease(ctx context.Context, b batch, results <-chan result, ready []result) error {
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
	r := f.relay
	if _, err := r.outbox.db.ExecContext(writing, f.sql.lease, string(list), slow.owner, r.cfg.Lease.Milliseconds()); err != nil {
		return err
	}
	r.inFlight.Add(int64(len(ids)))
	f.work.Go(func() { r.await(ctx, slow, results, len(ids)) })
	return nil
}
