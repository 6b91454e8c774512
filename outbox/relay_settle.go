package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/text"
)

// unpublishedRow says how the lease of a row ends that was not published: an entry of
// the list that relayStatements.giveBack takes.
type unpublishedRow struct {
	ID       int64   `json:"id"`
	Status   Status  `json:"status"`
	Attempts int     `json:"attempts"` // to be added
	Delay    *int64  `json:"delay"`    // in milliseconds, nil for one that is parked
	Story    *string `json:"story"`    // nil for unchanged
}

// settle writes down what became of rows of b, also when ctx has ended. It returns
// false if the database has not taken it.
func (r *Relay) settle(ctx context.Context, b batch, results []result) (settled bool) {
	var published []int64
	var unpublished []unpublishedRow
	for _, res := range results {
		d := decide(res.err, res.row.attempts, res.row.age, r.cfg, rand.Float64()) //nolint:gosec // jitter
		r.note(res, d)
		if d.status == Published {
			published = append(published, res.row.id)
			continue
		}
		u := unpublishedRow{ID: res.row.id, Status: d.status}
		if d.status == Pending {
			ms := d.delay.Milliseconds()
			u.Delay = &ms
		}
		if d.blamed {
			u.Attempts = 1
			story := addAttempt(res.row.story, res.row.attempts+1, res.err, d.status, time.Now(), r.host)
			u.Story = &story
		}
		unpublished = append(unpublished, u)
	}
	// Unpublished rows come first: until they are settled their leases hold back their keys.
	settled = true
	if len(unpublished) > 0 {
		settled = r.endLeases(ctx, b, r.outbox.sql.relay.giveBack, unpublished, len(unpublished))
	}
	if len(published) > 0 {
		settled = r.endLeases(ctx, b, r.outbox.sql.relay.mark, published, len(published)) && settled
		r.metrics.published.Add(float64(len(published)))
	}
	return settled
}

// note counts a result, and puts it into health and log.
func (r *Relay) note(res result, d decision) {
	about := res.row.about()
	switch {
	case d.status == Published:
		r.health.Clear(about)
	case d.blamed:
		r.metrics.failures.WithLabelValues(classOf(res.err)).Inc()
		if d.status == DeadLetter {
			r.metrics.parked.Inc()
			r.log.Error().Err(res.err).Int64("row", res.row.id).Str("message_id", text.Cut(res.row.messageID, maxShown)).Str("subject", text.Cut(res.row.subject, maxShown)).
				Msg("outbox relay: row is parked")
		}
	case d.waits:
		r.metrics.failures.WithLabelValues("unavailable").Inc()
		r.trouble(about, res.err)
	}
}

// endLeases runs a statement that ends the leases of n rows of b. It tries again until
// that is done, or the lease is over: before, nobody else has the rows.
func (r *Relay) endLeases(ctx context.Context, b batch, statement string, rows any, n int) (done bool) {
	list, err := json.Marshal(rows)
	if err != nil {
		r.trouble(partSettle, err)
		return false
	}
	for {
		changed, err := r.write(ctx, statement, string(list), b.owner)
		if err == nil {
			r.health.Clear(partSettle)
			if changed < int64(n) {
				r.log.Warn().Int64("rows", int64(n)-changed).Msg("outbox relay: lease was over, another relay has rows")
			}
			return true
		}
		r.trouble(partSettle, err)
		if time.Since(b.claimed) > r.cfg.Lease || !backoff.Wait(ctx, backoff.Around(settleRetry)) {
			return false
		}
	}
}

const (
	// maxShown is how many bytes of a text that somebody else has written are logged.
	maxShown = 256
	// settleTimeout bounds a statement that ends leases.
	settleTimeout = 15 * time.Second
	// settleRetry is the average pause between two tries.
	settleRetry = 150 * time.Millisecond
)

func (r *Relay) write(ctx context.Context, statement, list, owner string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	result, err := r.outbox.db.ExecContext(ctx, statement, list, owner)
	if err != nil {
		return 0, fmt.Errorf("%w: settle: %w", ErrDatabase, err)
	}
	changed, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%w: settle: %w", ErrDatabase, err)
	}
	return changed, nil
}
