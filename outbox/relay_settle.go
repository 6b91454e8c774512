package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/farandole/farandole/internal/text"
)

// givenRow is a row whose lease ends unpublished.
type givenRow struct {
	ID       int64   `json:"id"`
	Status   Status  `json:"status"`
	Attempts int     `json:"attempts"` // to be added
	Delay    *int64  `json:"delay"`    // in milliseconds, nil for one that is parked
	Story    *string `json:"story"`    // nil for unchanged
}

// settle writes down what became of rows of b, also when ctx has ended. It
// returns false if the database did not let it.
func (r *Relay) settle(ctx context.Context, b batch, results []result) (settled bool) {
	var published []int64
	var given []givenRow
	for _, res := range results {
		f := decide(res.err, res.row.attempts, res.row.age, r.cfg, rand.Float64()) //nolint:gosec // jitter
		r.note(res, f)
		if f.status == Published {
			published = append(published, res.row.id)
			continue
		}
		g := givenRow{ID: res.row.id, Status: f.status}
		if f.status == Pending {
			ms := f.delay.Milliseconds()
			g.Delay = &ms
		}
		if f.blamed {
			g.Attempts = 1
			story := tell(res.row.story, res.row.attempts+1, res.err, f.status, time.Now(), r.host)
			g.Story = &story
		}
		given = append(given, g)
	}
	// What waits is written first: until then its lease holds back its key.
	settled = true
	if len(given) > 0 {
		settled = r.insist(ctx, b, r.outbox.sql.relay.give, given, len(given))
	}
	if len(published) > 0 {
		settled = r.insist(ctx, b, r.outbox.sql.relay.mark, published, len(published)) && settled
		r.metrics.published.Add(float64(len(published)))
	}
	return settled
}

// note counts a result and tells people of it.
func (r *Relay) note(res result, f fate) {
	about := res.row.about()
	switch {
	case f.status == Published:
		r.health.clear(about)
	case f.blamed:
		r.metrics.failures.WithLabelValues(classOf(res.err)).Inc()
		if f.status == DeadLetter {
			r.metrics.parked.Inc()
			r.log.Error().Err(res.err).Int64("row", res.row.id).Str("message_id", text.Cut(res.row.messageID, maxShown)).Str("subject", text.Cut(res.row.subject, maxShown)).
				Msg("outbox relay: row is parked")
		}
	case f.waits:
		r.metrics.failures.WithLabelValues("unavailable").Inc()
		r.trouble(about, res.err)
	}
}

// insist repeats a statement until it is done, or the lease is over and the
// database is there to say so: until then nobody else has the rows.
func (r *Relay) insist(ctx context.Context, b batch, statement string, rows any, n int) (done bool) {
	list, err := json.Marshal(rows)
	if err != nil {
		r.trouble(partSettle, err)
		return false
	}
	for {
		changed, err := r.write(ctx, statement, string(list), b.owner)
		if err == nil {
			r.health.clear(partSettle)
			if changed < int64(n) {
				r.log.Warn().Int64("rows", int64(n)-changed).Msg("outbox relay: lease was over, another relay has rows")
			}
			return true
		}
		r.trouble(partSettle, err)
		if time.Since(b.claimed) > r.cfg.Lease || !pause(ctx, minPause+rand.N(minPause)) { //nolint:gosec // jitter
			return false
		}
	}
}

const (
	// maxShown is how much of a text that somebody else has written is logged.
	maxShown = 256
	// settleTimeout bounds a statement that ends leases.
	settleTimeout = 15 * time.Second
	// minPause is between two tries of one.
	minPause = 100 * time.Millisecond
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
