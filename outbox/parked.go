package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// parkedPage is how many rows are read at once: what is too large to be
// published is a reason to be parked.
const parkedPage = 16

// Parked is the dead letters of an outbox: the rows that could not be published,
// whose status is DEAD_LETTER. They stay in their table; the ID of a letter is
// outbox.<message id>, and its Sequence the id of the row. Errors match
// [ErrDatabase].
type Parked struct{ outbox *Outbox }

var _ dlq.Store = Parked{}

// Parked returns the rows of this outbox that could not be published.
func (o *Outbox) Parked() Parked { return Parked{o} }

// List returns the rows that match f, those with the highest ids first.
func (p Parked) List(ctx context.Context, f dlq.Filter, limit int, cursor uint64) (dlq.Page, error) {
	stats, err := p.outbox.Stats(ctx)
	if err != nil {
		return dlq.Page{}, err
	}
	page := dlq.Page{Entries: []dlq.Entry{}, Total: int(stats.Parked)}
	all := f == dlq.Filter{} || f == dlq.Filter{Consumer: dlq.ConsumerOutbox}
	if all {
		page.Matching = page.Total
	}
	for r, err := range p.rows(ctx, f, selected{newestFirst: true}) {
		if err != nil {
			return dlq.Page{}, err
		}
		if !all {
			page.Matching++
		}
		switch {
		case cursor != 0 && r.Sequence >= cursor: // on a page before
		case len(page.Entries) < limit:
			page.Entries = append(page.Entries, r.Entry)
		default:
			page.Next = page.Entries[limit-1].Sequence
			if all {
				return page, nil
			}
		}
	}
	return page, nil
}

// Scan visits the rows that match f, those with the lowest ids first, with their data.
func (p Parked) Scan(ctx context.Context, f dlq.Filter, _ bool, visit func(dlq.Record) error) error {
	for r, err := range p.rows(ctx, f, selected{}) {
		if err == nil {
			err = visit(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Get returns the case of a parked row.
func (p Parked) Get(ctx context.Context, id string) (dlq.Case, error) {
	for r, err := range p.rows(ctx, dlq.Filter{}, selected{messageID: messageIDOf(id)}) {
		if err != nil {
			return dlq.Case{}, err
		}
		return dlq.Case{ID: id, Letter: &r, Verdict: "parked in the outbox: it was never published; a replay has a relay try again"}, nil
	}
	return dlq.Case{}, notParked(id)
}

// Replay sets a parked row to PENDING, with all its tries before it and its story
// kept. A relay publishes it, after rows of its key that have overtaken it.
func (p Parked) Replay(ctx context.Context, r dlq.Ref, o dlq.ReplayOptions) (dlq.Result, error) {
	if o.DryRun {
		return p.look(ctx, r, dlq.WouldReplay)
	}
	defer p.outbox.Wake()
	// Due now, not NULL: a relay with a feed leaves young rows without a time to
	// the feed, which tells of inserts only.
	return p.change(ctx, r, dlq.Pending, `UPDATE {outbox} SET status = 'PENDING', attempts = 0, due_at = {now}, owner = NULL
		WHERE {parked} AND message_id = $1`)
}

// TakeBack does nothing: a relay may be publishing a row that was replayed.
func (p Parked) TakeBack(_ context.Context, r dlq.Ref, _ dlq.TakeBackOptions) (dlq.Result, error) {
	return dlq.Result{ID: r.ID, Status: dlq.NotReplayed}, nil
}

// Outcome says whether a row that was replayed is published, or parked again.
func (p Parked) Outcome(ctx context.Context, r dlq.Result) (dlq.Outcome, error) {
	var status Status
	err := p.outbox.db.QueryRowContext(ctx, p.outbox.render("SELECT status FROM {outbox} WHERE message_id = $1"), messageIDOf(r.ID)).Scan(&status)
	switch {
	case errors.Is(err, sql.ErrNoRows), status == Published: // rows that are published are cleaned up
		return dlq.Outcome{Status: dlq.Handled}, nil
	case err != nil:
		return dlq.Outcome{}, fmt.Errorf("%w: parked row %s: %w", ErrDatabase, r.ID, err)
	case status == DeadLetter:
		return dlq.Outcome{Status: dlq.FailedAgain}, nil
	default:
		return dlq.Outcome{Status: dlq.Waiting}, nil
	}
}

// Workers returns 1: whether a relay runs the table does not tell.
func (p Parked) Workers(context.Context, event.Consumer) (int, error) { return 1, nil }

// Discard deletes a parked row: its event will never be published. The outbox
// takes an event of its id again.
func (p Parked) Discard(ctx context.Context, r dlq.Ref, o dlq.DiscardOptions) (dlq.Result, error) {
	if o.DryRun {
		return p.look(ctx, r, dlq.WouldDiscard)
	}
	return p.change(ctx, r, dlq.Discarded, "DELETE FROM {outbox} WHERE {parked} AND message_id = $1")
}

// change runs a statement on one parked row; done is what has become of it then.
func (p Parked) change(ctx context.Context, r dlq.Ref, done dlq.Status, statement string) (dlq.Result, error) {
	var n int64
	changed, err := p.outbox.db.ExecContext(ctx, p.outbox.render(statement), messageIDOf(r.ID))
	if err == nil {
		n, err = changed.RowsAffected()
	}
	return resultOf(r, done, n, err)
}

// look is change for a dry run.
func (p Parked) look(ctx context.Context, r dlq.Ref, would dlq.Status) (dlq.Result, error) {
	var n int64
	err := p.outbox.db.QueryRowContext(ctx, p.outbox.render("SELECT count(*) FROM {outbox} WHERE {parked} AND message_id = $1"),
		messageIDOf(r.ID)).Scan(&n)
	return resultOf(r, would, n, err)
}

// resultOf is what became of a row, n of which were parked. What a database
// refuses for one row it refuses for all.
func resultOf(r dlq.Ref, done dlq.Status, n int64, err error) (dlq.Result, error) {
	switch {
	case err != nil:
		err = fmt.Errorf("%w: parked row %s: %w", ErrDatabase, r.ID, err)
		return dlq.Result{ID: r.ID, Status: dlq.Failed, Err: err}, err
	case n == 0:
		return dlq.Result{ID: r.ID, Status: dlq.NotFound, Err: notParked(r.ID)}, nil
	default:
		return dlq.Result{ID: r.ID, Status: done}, nil
	}
}

func messageIDOf(id string) string { return strings.TrimPrefix(id, string(dlq.ConsumerOutbox)+".") }

func notParked(id string) error {
	return fmt.Errorf("%w: %s is not parked in this outbox", dlq.ErrNotFound, id)
}

// selected is what [Parked.rows] reads besides what a filter tells.
type selected struct {
	newestFirst bool   // by id; else the oldest first
	messageID   string // of the only row, "" for all
}

// rows goes over the parked rows that match f, and reads some at a time. An error
// is the last value.
func (p Parked) rows(ctx context.Context, f dlq.Filter, s selected) iter.Seq2[dlq.Record, error] {
	return func(yield func(dlq.Record, error) bool) {
		if f.Consumer != "" && f.Consumer != dlq.ConsumerOutbox {
			return
		}
		key := ""
		if f.Key != "" { // the column tells the key also of a row that is no event
			key, f.Key = event.EscapeKey(f.Key), ""
		}
		beyond := int64(math.MinInt64)
		if s.newestFirst {
			beyond = math.MaxInt64
		}
		for {
			var page []dlq.Record
			var err error
			page, beyond, err = p.page(ctx, key, s, beyond)
			if err != nil {
				yield(dlq.Record{}, fmt.Errorf("%w: parked rows: %w", ErrDatabase, err))
				return
			}
			for _, r := range page {
				if f.Matches(p.outbox.cfg.Names, r.Entry) && !yield(r, nil) {
					return
				}
			}
			if len(page) < parkedPage {
				return
			}
		}
	}
}

// page reads the next rows beyond an id, and returns the id of the last one.
func (p Parked) page(ctx context.Context, key string, s selected, beyond int64) (page []dlq.Record, last int64, err error) {
	where, order := "id > $1", "ASC"
	if s.newestFirst {
		where, order = "id < $1", "DESC"
	}
	rows, err := p.outbox.db.QueryContext(ctx, p.outbox.render(`
		SELECT id, message_id, subject, key, headers, data, story, {unix created_at} FROM {outbox}
		WHERE {parked} AND `+where+` AND ($2 = '' OR key = $2) AND ($3 = '' OR message_id = $3)
		ORDER BY id `+order+` LIMIT $4`), beyond, key, s.messageID, parkedPage)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r row
		var created int64
		if err := rows.Scan(&r.id, &r.messageID, &r.subject, &r.key, &r.headers, &r.data, &r.story, &created); err != nil {
			return nil, 0, err
		}
		page, last = append(page, p.record(r, time.UnixMilli(created))), r.id
	}
	return page, last, rows.Err()
}

// record is a parked row as a dead letter. What others have written may be
// anything: headers that cannot be read are a reason to be parked.
func (p Parked) record(r row, created time.Time) dlq.Record {
	headers, err := parseHeaders(r.headers)
	if err != nil {
		headers = nats.Header{"unreadable": {r.headers}}
	}
	var attempts []event.Attempt // the failed tries to publish it, oldest first
	if err := json.Unmarshal([]byte(r.story), &attempts); err != nil || len(attempts) == 0 {
		attempts = nil
	}
	e := dlq.Entry{
		ID:       string(dlq.ConsumerOutbox) + "." + r.messageID,
		Sequence: uint64(max(0, r.id)),
		Stored:   created, Consumer: dlq.ConsumerOutbox, Reason: event.ReasonExhausted, EventKey: event.EventKey(r.messageID),
		Key: event.Key(r.key), Count: 1, Origin: dlq.Origin{Subject: r.subject, Time: created}, Size: len(r.data),
	}
	for i, at := range attempts {
		if i > 0 && at.Number == 1 { // the first one after a replay
			e.Count++
			e.Failures = 0
		}
		e.Failures++
	}
	if n := len(attempts); n > 0 {
		first, last := attempts[0], attempts[n-1]
		e.FirstFailure, e.FirstClass, e.FirstError = first.At, first.Class, first.Error
		e.LastFailure, e.Class, e.Error, e.Host = last.At, last.Class, last.Error, last.Host
		e.Reason = cmp.Or(last.Reason, e.Reason)
		if !last.At.IsZero() {
			e.Stored = last.At // it was parked then, by the relay's clock
		}
	}
	if ev, err := event.Decode(headers, r.data); err == nil {
		e.EventID, e.Source, e.Type, e.Key = ev.ID(), ev.Source(), ev.Type(), event.PartitionKey(ev)
		e.CorrelationID = event.Extension(ev, event.ExtCorrelation)
	}
	e.Complete(p.outbox.cfg.Names)
	return dlq.Record{Entry: e, Attempts: attempts, Headers: headers, Data: r.data}
}
