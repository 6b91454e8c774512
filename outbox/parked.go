package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// Parked is the dead letters of an outbox: the rows that could not be published,
// whose status is DEAD_LETTER, and those of them that are being replayed, until a relay
// has published them. They stay in their table; the ID of a letter is
// outbox.<message id>, and its Sequence the id of the row. Errors match
// [ErrDatabase].
type Parked struct{ outbox *Outbox }

var _ dlq.Store = Parked{}

// Parked returns the rows of this outbox that could not be published.
func (o *Outbox) Parked() Parked { return Parked{o} }

// List returns the rows that match f, those with the highest ids first.
func (p Parked) List(ctx context.Context, f dlq.Filter, limit int, cursor uint64) (dlq.Page, error) {
	page := dlq.Page{Entries: []dlq.Entry{}}
	err := p.outbox.db.QueryRowContext(ctx, p.outbox.render(`SELECT
		(SELECT count(*) FROM {outbox} WHERE {parked}) + (SELECT count(*) FROM {outbox} WHERE {replayed})`)).Scan(&page.Total)
	if err != nil {
		return dlq.Page{}, fmt.Errorf("%w: count parked rows: %w", ErrDatabase, err)
	}
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
			err = visit(r.Record)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Get returns the case of a parked row. The id may be short, as in [dlq.Queue.Get].
func (p Parked) Get(ctx context.Context, id string) (dlq.Case, error) {
	r, err := p.find(ctx, id)
	if err != nil {
		return dlq.Case{}, err
	}
	c := dlq.Case{ID: r.ID, Letter: &r.Record, Verdict: r.Progress()}
	if r.Replay == nil {
		c.Verdict = "parked in the outbox: it was never published; a replay has a relay try again"
	}
	return c, nil
}

// Replay sets a parked row to PENDING, with all its tries before it and its story
// kept. A relay publishes it, after rows of its key that have overtaken it.
func (p Parked) Replay(ctx context.Context, ref dlq.Ref, o dlq.ReplayOptions) (dlq.Result, error) {
	number := 0
	result, err := p.change(ctx, ref, func(r parkedRow) (dlq.Status, error) {
		switch {
		case r.Replay != nil:
			number = r.Replay.Number
			return dlq.InProgress, nil
		case o.DryRun:
			return dlq.WouldReplay, nil
		}
		defer p.outbox.Wake()
		var told story
		told, number = readStory(r.story).replay(r.Count, o.By)
		column, err := told.column()
		if err != nil {
			return dlq.Failed, err
		}
		// Due now, not NULL: a relay with a feed leaves young rows without a time to
		// the feed, which tells of inserts only.
		return p.write(ctx, r, dlq.Pending, "UPDATE {outbox} SET status = 'PENDING', attempts = 0, due_at = {now}, owner = NULL, story = $4", column)
	})
	result.Replay = number
	return result, err
}

// TakeBack parks a row again that was replayed, unless a relay has it now. What a relay has
// sent before and got no answer to may be stored all the same.
func (p Parked) TakeBack(ctx context.Context, ref dlq.Ref, o dlq.TakeBackOptions) (dlq.Result, error) {
	return p.change(ctx, ref, func(r parkedRow) (dlq.Status, error) {
		switch {
		case r.Replay == nil:
			return dlq.NotReplayed, nil
		case r.status != Pending:
			return dlq.InProgress, nil
		case o.DryRun:
			return dlq.WouldTakeBack, nil
		}
		return p.write(ctx, r, dlq.TakenBack, "UPDATE {outbox} SET status = 'DEAD_LETTER', due_at = NULL, owner = NULL")
	})
}

// Outcome says whether a row that was replayed is published, or parked again.
func (p Parked) Outcome(ctx context.Context, r dlq.Result) (dlq.Outcome, error) {
	var status Status
	var column string
	err := p.outbox.db.QueryRowContext(ctx, p.outbox.render("SELECT status, story FROM {outbox} WHERE message_id = $1"), messageIDOf(r.ID)).Scan(&status, &column)
	switch {
	case errors.Is(err, sql.ErrNoRows), status == Published: // rows that are published are cleaned up
		return dlq.Outcome{Status: dlq.Handled}, nil
	case err != nil:
		return dlq.Outcome{}, fmt.Errorf("%w: parked row %s: %w", ErrDatabase, r.ID, err)
	case status != DeadLetter:
		return dlq.Outcome{Status: dlq.Waiting}, nil
	case readStory(column).takenBack():
		return dlq.Outcome{Status: dlq.TakenBack}, nil
	default:
		return dlq.Outcome{Status: dlq.FailedAgain}, nil
	}
}

// Workers returns 1: whether a relay runs the table does not tell.
func (p Parked) Workers(context.Context, event.Consumer) (int, error) { return 1, nil }

// Discard deletes a parked row: its event will never be published. The outbox
// takes an event of its id again. With Force it deletes one that is being replayed, too,
// unless a relay has it now.
func (p Parked) Discard(ctx context.Context, ref dlq.Ref, o dlq.DiscardOptions) (dlq.Result, error) {
	return p.change(ctx, ref, func(r parkedRow) (dlq.Status, error) {
		switch {
		case r.Replay != nil && (!o.Force || r.status != Pending):
			return dlq.InProgress, nil // to be taken back first
		case o.DryRun:
			return dlq.WouldDiscard, nil
		}
		return p.write(ctx, r, dlq.Discarded, "DELETE FROM {outbox}")
	})
}

// change reads a row and does one thing with it. What a database refuses for one row it
// refuses for all.
func (p Parked) change(ctx context.Context, ref dlq.Ref, do func(parkedRow) (dlq.Status, error)) (dlq.Result, error) {
	result := dlq.Result{ID: ref.ID, Status: dlq.Failed}
	r, err := p.find(ctx, ref.ID)
	if err == nil {
		result.ID = r.ID
		result.Status, err = do(r)
	}
	if errors.Is(err, dlq.ErrNotFound) {
		result.Status = dlq.NotFound
	}
	result.Err = err
	if errors.Is(err, ErrDatabase) {
		return result, err
	}
	return result, nil
}

// write runs a statement on a row that is as it was read; args are from $4 on. Else a relay
// has claimed it meanwhile, or somebody else has changed it, and it is in progress.
func (p Parked) write(ctx context.Context, r parkedRow, done dlq.Status, statement string, args ...any) (dlq.Status, error) {
	args = append([]any{messageIDOf(r.ID), string(r.status), r.story}, args...)
	var n int64
	changed, err := p.outbox.db.ExecContext(ctx, p.outbox.render(statement+" WHERE message_id = $1 AND status = $2 AND story = $3"), args...)
	if err == nil {
		n, err = changed.RowsAffected()
	}
	switch {
	case err != nil:
		return dlq.Failed, fmt.Errorf("%w: parked row %s: %w", ErrDatabase, r.ID, err)
	case n == 0:
		return dlq.InProgress, nil
	default:
		return done, nil
	}
}
