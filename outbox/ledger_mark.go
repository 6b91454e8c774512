package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// markTimeout bounds each thing that the ledger asks of the database. It is
// longer than the busy timeout.
const markTimeout = 15 * time.Second

// marks keeps a ledger's marks, in the table <prefix>inbox.
type marks struct {
	outbox *Outbox
	sql    markStatements
}

var _ dedup.Store = (*marks)(nil)

// markStatements are what marks says to the database.
type markStatements struct {
	read, create, replace, clock string
}

// markStatementsOf renders the statements. A new mark takes its revision from
// the clock, so that it follows those of any mark that was there before.
func markStatementsOf(d Dialect, prefix string) markStatements {
	const expires = `CASE WHEN CAST($5 AS bigint) > 0 THEN {now} + {ms $5} END`
	return markStatements{
		clock: render(d, prefix, `SELECT {unix {now}}`),
		read: render(d, prefix, `SELECT mark, revision, {unix written_at} FROM {inbox}
			WHERE consumer = $1 AND event_key = $2 AND (expires_at IS NULL OR expires_at > {now})`),
		create: render(d, prefix, `INSERT INTO {inbox} (consumer, event_key, revision, mark, written_at, expires_at)
			VALUES ($1, $2, {unix {now}} + $3, $4, {now}, `+expires+`)
			ON CONFLICT (consumer, event_key) DO UPDATE SET
			revision = {inbox}.revision + 1, mark = excluded.mark, written_at = excluded.written_at, expires_at = excluded.expires_at
			WHERE {inbox}.expires_at <= {now}
			RETURNING revision`),
		replace: render(d, prefix, `UPDATE {inbox} SET revision = revision + 1, mark = $4, written_at = {now}, expires_at = `+expires+`
			WHERE consumer = $1 AND event_key = $2 AND revision = $3 AND (expires_at IS NULL OR expires_at > {now})
			RETURNING revision`),
	}
}

// ReadMark returns a mark and when it was written, revision 0 if there is none or
// none any more. Errors match [ErrDatabase] or [ErrSchema], and
// [bus.ErrUnavailable] when the database was not there.
func (m *marks) ReadMark(ctx context.Context, c event.Consumer, k event.EventKey) (mark []byte, revision uint64, written time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var millis int64
	err = m.outbox.db.QueryRowContext(ctx, m.sql.read, string(c), string(k)).Scan(&mark, &revision, &millis)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, 0, time.Time{}, nil
	case err != nil:
		return nil, 0, time.Time{}, fault("read a mark", err)
	}
	if err := m.outbox.onDisk(ctx); err != nil {
		return nil, 0, time.Time{}, fault("read a mark", err)
	}
	return mark, revision, time.UnixMilli(millis), nil
}

// onDisk returns when what was read is on disk: package sqlite shows what is
// committed a moment earlier, and for a mark that is read an event is acknowledged.
func (o *Outbox) onDisk(ctx context.Context) error {
	if o.cfg.Dialect != SQLite {
		return nil
	}
	tx, err := o.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	return tx.Commit()
}

// Now is the database's clock. Errors match [ErrDatabase].
func (m *marks) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var millis int64
	if err := m.outbox.db.QueryRowContext(ctx, m.sql.clock).Scan(&millis); err != nil {
		return time.Time{}, fault("ask for the time", err)
	}
	return time.UnixMilli(millis), nil
}

// WriteMark writes a done mark in the transaction of the event's handler, and any
// other mark in one of its own. On SQLite a handler's open transaction holds off all
// other writers: a write for the same event does nothing then. Errors match
// [bus.ErrConflict] when the mark is not at revision w.After; [ErrDatabase],
// and besides [bus.ErrBusy] if others were in the way or [bus.ErrUnavailable] if
// the database was not there; or [ErrSchema].
func (m *marks) WriteMark(ctx context.Context, w dedup.Write) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	r := runOf(w.Claim)
	if w.Done {
		return r.commit(ctx, w)
	}
	if r != nil && m.outbox.cfg.Dialect == SQLite {
		r.mu.Lock() // or the handler could begin while this write waits for its turn, behind it
		defer r.mu.Unlock()
		if r.tx != nil {
			return w.After, nil
		}
	}
	return m.put(ctx, m.outbox.db, w)
}

// complete writes the mark and the rows and commits. The mark comes first: it
// is what says whether the rest may be written.
func (m *marks) complete(ctx context.Context, t *transaction, w dedup.Write) (uint64, error) {
	revision, err := m.put(ctx, t, w)
	if err != nil {
		return 0, err
	}
	for _, msg := range w.Out {
		if _, err := m.outbox.insert(ctx, t, msg, w.Consumer); err != nil {
			return 0, excuse(err)
		}
	}
	defer context.AfterFunc(ctx, t.cancel)()
	if err := t.Commit(); err != nil {
		return 0, fault("commit", err)
	}
	if len(w.Out) > 0 {
		m.outbox.Wake()
	}
	return revision, nil
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (m *marks) put(ctx context.Context, q querier, w dedup.Write) (revision uint64, err error) {
	query := m.sql.replace
	if w.After == 0 {
		query = m.sql.create
	}
	millis := int64((w.Lifetime + time.Millisecond - 1) / time.Millisecond)
	err = q.QueryRowContext(ctx, query, string(w.Consumer), string(w.Key), int64(w.After), string(w.Mark), millis).Scan(&revision) //nolint:gosec // revisions are the database's own
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, conflict(w)
	case err != nil:
		return 0, fault("write a mark", err)
	}
	return revision, nil
}

func conflict(w dedup.Write) error {
	return fmt.Errorf("outbox: mark of %s %s: %w", w.Consumer, w.Key, bus.ErrConflict)
}

// fault gives a driver's error its sentinels.
func fault(doing string, err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == "42P01" || strings.Contains(err.Error(), "no such table") {
		return unavailable{fmt.Errorf("%w are missing: run Outbox.Migrate: %w", ErrSchema, err)}
	}
	return excuse(fmt.Errorf("%w: %s: %w", ErrDatabase, doing, err))
}
