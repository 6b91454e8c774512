package order

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/farandole/farandole/outbox"
)

// table reads and writes the table orders. Its methods take the transaction that
// they are part of, or the database.
type table struct{ dialect outbox.Dialect }

// querier is a *sql.DB or *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

const selected = `SELECT order_id, status, reason, customer_id, currency, total, items, request, instance, created_at, updated_at FROM orders`

// insert adds a new order. It returns false and changes nothing if there is an
// order with its id.
func (t table) insert(ctx context.Context, tx *sql.Tx, o Order) (bool, error) {
	items, err := json.Marshal(o.Items)
	if err != nil {
		return false, fmt.Errorf("order: items of %s: %w", o.ID, err)
	}
	result, err := tx.ExecContext(ctx, `INSERT INTO orders
		(order_id, status, reason, customer_id, currency, total, items, request, instance, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (order_id) DO NOTHING`,
		o.ID, string(o.Status), text(o.Reason), o.CustomerID, o.Currency, o.Total, string(items), o.Request, o.Instance,
		t.time(o.Created), t.time(o.Updated))
	if err != nil {
		return false, failed("insert "+o.ID, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, failed("insert "+o.ID, err)
	}
	return n == 1, nil
}

// get returns an order, or the zero order if there is none.
func (t table) get(ctx context.Context, q querier, id string) (Order, error) {
	return t.one(ctx, q, id, "")
}

// lock returns an order that nobody else can change before the transaction ends. On
// SQLite every transaction of a writer holds the lock of the whole file.
func (t table) lock(ctx context.Context, tx *sql.Tx, id string) (Order, error) {
	if t.dialect == outbox.Postgres {
		return t.one(ctx, tx, id, " FOR UPDATE")
	}
	return t.one(ctx, tx, id, "")
}

func (t table) one(ctx context.Context, q querier, id, suffix string) (Order, error) {
	if !storable(id) {
		return Order{}, nil
	}
	all, err := t.query(ctx, q, selected+` WHERE order_id = $1`+suffix, id)
	if err != nil || len(all) == 0 {
		return Order{}, err
	}
	return all[0], nil
}

// update writes the columns of an order that can change.
func (t table) update(ctx context.Context, tx *sql.Tx, o Order) error {
	_, err := tx.ExecContext(ctx, `UPDATE orders SET status = $2, reason = $3, updated_at = $4 WHERE order_id = $1`,
		o.ID, string(o.Status), text(o.Reason), t.time(o.Updated))
	if err != nil {
		return failed("update "+o.ID, err)
	}
	return nil
}

// underWay counts the orders that are not final and were placed since a time. It
// stops counting at most.
func (t table) underWay(ctx context.Context, db *sql.DB, since time.Time, most int) (n int, err error) {
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM (
		SELECT 1 FROM orders WHERE status IN ('placed', 'paid', 'cancelling') AND created_at > $1 LIMIT $2
	) AS open`, t.time(since), most).Scan(&n)
	if err != nil {
		return 0, failed("count", err)
	}
	return n, nil
}

// selection says which orders a list holds.
type selection struct {
	status   Status    // "" for all
	customer string    // "" for all
	after    *position // nil for the beginning
	limit    int
}

// position is the place of an order in a list, which is sorted by these two.
type position struct {
	created time.Time
	id      string
}

// list returns the selected orders, newest first.
func (t table) list(ctx context.Context, q querier, s selection) ([]Order, error) {
	query, args := t.listing(s)
	return t.query(ctx, q, query, args...)
}

// openBefore returns the oldest orders that were placed before a time and are
// neither final nor being cancelled.
func (t table) openBefore(ctx context.Context, q querier, before time.Time, limit int) ([]Order, error) {
	return t.query(ctx, q, selected+` WHERE status IN ('placed', 'paid') AND created_at < $1 ORDER BY created_at LIMIT $2`,
		t.time(before), limit)
}

func (t table) listing(s selection) (query string, args []any) {
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	var where []string
	if s.status != "" {
		where = append(where, "status = "+arg(string(s.status)))
	}
	if s.customer != "" {
		where = append(where, "customer_id = "+arg(s.customer))
	}
	if s.after != nil {
		where = append(where, "(created_at, order_id) < ("+arg(t.time(s.after.created))+", "+arg(s.after.id)+")")
	}
	query = selected
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	query += " ORDER BY created_at DESC, order_id DESC LIMIT " + arg(s.limit)
	return query, args
}

func (t table) query(ctx context.Context, q querier, query string, args ...any) (all []Order, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, failed("read", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var o Order
		var items []byte
		var created, updated moment
		if err := rows.Scan(&o.ID, &o.Status, &o.Reason, &o.CustomerID, &o.Currency, &o.Total, &items, &o.Request, &o.Instance, &created, &updated); err != nil {
			return nil, failed("read", err)
		}
		if err := json.Unmarshal(items, &o.Items); err != nil {
			return nil, fmt.Errorf("%w: %s: items: %w", errUnreadable, o.ID, err)
		}
		o.Created, o.Updated = created.Time, updated.Time
		all = append(all, o)
	}
	if err := rows.Err(); err != nil {
		return nil, failed("read", err)
	}
	return all, nil
}

func failed(what string, err error) error { return fmt.Errorf("%w: %s: %w", ErrTables, what, err) }

// time is a time in the form of the column: milliseconds since 1970 on SQLite,
// which has no type for times.
func (t table) time(at time.Time) any {
	if t.dialect == outbox.Postgres {
		return at
	}
	return at.UnixMilli()
}

// moment scans a time of either database.
type moment struct{ time.Time }

// Scan implements [sql.Scanner].
func (m *moment) Scan(v any) error {
	switch v := v.(type) {
	case time.Time:
		m.Time = v.UTC()
	case int64:
		m.Time = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time is a %T", v)
	}
	return nil
}

// storable says whether both databases can store s as text. Postgres refuses NUL.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// text makes s storable: it replaces what is not by U+FFFD. s may come from another
// service's event.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}
