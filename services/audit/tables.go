package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/farandole/farandole/bus"
)

// collectTables reads the order service's database. The queries work in SQLite and in
// Postgres.
func (e *Evidence) collectTables(ctx context.Context, b *bus.Bus, db *sql.DB) error {
	events := strings.TrimSuffix(b.Names().EventsFilter(), ">")
	return errors.Join(
		each(ctx, db, `SELECT order_id, status, currency, total, items FROM orders ORDER BY order_id`, func(row *sql.Rows) error {
			var o Order
			var text string
			if err := row.Scan(&o.ID, &o.Status, &o.Currency, &o.Total, &text); err != nil {
				return err
			}
			var lines []item
			if err := json.Unmarshal([]byte(text), &lines); err != nil {
				return fmt.Errorf("items of %s: %w", o.ID, err)
			}
			o.Items = itemsOf(lines)
			e.Orders = append(e.Orders, o)
			return nil
		}),
		each(ctx, db, `SELECT id, message_id, subject, key, status, attempts FROM outbox ORDER BY id`, func(row *sql.Rows) error {
			var r Row
			if err := row.Scan(&r.ID, &r.MessageID, &r.Subject, &r.Order, &r.Status, &r.Attempts); err != nil {
				return err
			}
			r.Event = strings.HasPrefix(r.Subject, events)
			e.Outbox = append(e.Outbox, r)
			return nil
		}),
		each(ctx, db, `SELECT consumer, event_key, mark FROM inbox ORDER BY consumer, event_key`, func(row *sql.Rows) error {
			var m Mark
			var text string
			if err := row.Scan(&m.Consumer, &m.EventKey, &text); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(text), &struct{ State *string }{&m.State}); err != nil {
				return fmt.Errorf("mark of %s %s: %w", m.Consumer, m.EventKey, err)
			}
			e.Inbox = append(e.Inbox, m)
			return nil
		}),
	)
}

// each calls f for every row.
func each(ctx context.Context, db *sql.DB, query string, f func(*sql.Rows) error) (err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
