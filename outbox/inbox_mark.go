package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// inboxStatements are what an inbox says to its database.
type inboxStatements struct {
	read, create, replace, clock string
}

// inboxStatementsOf renders the statements. A new mark takes its revision from
// the clock, so that it follows those of any mark that was there before.
func inboxStatementsOf(d Dialect, prefix string) inboxStatements {
	const expires = `CASE WHEN CAST($5 AS bigint) > 0 THEN {now} + {ms $5} END`
	return inboxStatements{
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

// Read returns a mark and when it was written, revision 0 if there is none or
// none any more. Errors match [ErrDatabase] or [ErrSchema],
// and [bus.ErrUnavailable] when the database was not there.
func (i *Inbox) Read(ctx context.Context, c event.Consumer, k event.EventKey) (mark []byte, revision uint64, written time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var millis int64
	err = i.outbox.db.QueryRowContext(ctx, i.sql.read, string(c), string(k)).Scan(&mark, &revision, &millis)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, 0, time.Time{}, nil
	case err != nil:
		return nil, 0, time.Time{}, fault("read a mark", err)
	}
	if err := i.outbox.onDisk(ctx); err != nil {
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
func (i *Inbox) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var millis int64
	if err := i.outbox.db.QueryRowContext(ctx, i.sql.clock).Scan(&millis); err != nil {
		return time.Time{}, fault("ask for the time", err)
	}
	return time.UnixMilli(millis), nil
}

// Write replaces a mark that is at revision after, 0 for none, in a transaction
// of its own. It is kept for lifetime, 0 for ever. On SQLite a handler's open
// transaction holds off all other writers: a write for the same event then does
// nothing. Errors match [bus.ErrConflict] when the mark is not at that
// revision; [ErrDatabase], and besides [bus.ErrBusy] if others were in the way or
// [bus.ErrUnavailable] if the database was not there; or [ErrSchema].
func (i *Inbox) Write(ctx context.Context, c event.Consumer, k event.EventKey, after uint64, mark []byte, lifetime time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if w := i.workOf(c, k); w != nil && i.outbox.cfg.Dialect == SQLite {
		w.mu.Lock() // or its handler could begin while this write waits for its turn, behind it
		defer w.mu.Unlock()
		if w.tx != nil {
			return after, nil
		}
	}
	return i.put(ctx, i.outbox.db, workKey{c, k}, after, mark, lifetime)
}

// complete writes the mark and the rows and commits. The mark comes first: it
// is what says whether the rest may be written.
func (i *Inbox) complete(ctx context.Context, t *transaction, key workKey, after uint64, mark []byte, lifetime time.Duration, out []*nats.Msg) (uint64, error) {
	revision, err := i.put(ctx, t, key, after, mark, lifetime)
	if err != nil {
		return 0, err
	}
	for _, m := range out {
		if _, err := i.outbox.insert(ctx, t, m, key.consumer); err != nil {
			return 0, excuse(err)
		}
	}
	defer context.AfterFunc(ctx, t.cancel)()
	if err := t.Commit(); err != nil {
		return 0, fault("commit", err)
	}
	if len(out) > 0 {
		i.outbox.Wake()
	}
	return revision, nil
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (i *Inbox) put(ctx context.Context, q querier, key workKey, after uint64, mark []byte, lifetime time.Duration) (revision uint64, err error) {
	query := i.sql.replace
	if after == 0 {
		query = i.sql.create
	}
	millis := int64((lifetime + time.Millisecond - 1) / time.Millisecond)
	err = q.QueryRowContext(ctx, query, string(key.consumer), string(key.event), int64(after), string(mark), millis).Scan(&revision) //nolint:gosec // revisions are the database's own
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, conflict(key)
	case err != nil:
		return 0, fault("write a mark", err)
	}
	return revision, nil
}

func conflict(key workKey) error {
	return fmt.Errorf("outbox: mark of %s %s: %w", key.consumer, key.event, bus.ErrConflict)
}

// fault gives a driver's error its sentinels.
func fault(doing string, err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == "42P01" || strings.Contains(err.Error(), "no such table") {
		return unavailable{fmt.Errorf("%w are missing: run Outbox.Migrate: %w", ErrSchema, err)}
	}
	return excuse(fmt.Errorf("%w: %s: %w", ErrDatabase, doing, err))
}
