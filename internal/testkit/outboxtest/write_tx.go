package outboxtest

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

func committed(w *writer) {
	w.commit(func(tx *sql.Tx) {
		w.exec(tx, "INSERT INTO business (id) VALUES ('kept')")
		w.ok(w.outbox.Add(w.Context(), tx, w.seal("kept", "", nil), w.seal("kept", "", nil)))
	})
	tx, err := w.db.BeginTx(w.Context(), nil)
	w.ok(err)
	w.exec(tx, "INSERT INTO business (id) VALUES ('undone')")
	w.ok(w.outbox.Add(w.Context(), tx, w.seal("undone", "", nil)))
	w.ok(tx.Rollback())
	w.want(map[string]int{"business": 1, "outbox": 2, "outbox WHERE key = 'kept' AND status = 'PENDING' AND attempts = 0": 2})
}

func duplicate(w *writer) {
	first, other := w.seal("ord-1", "a", []byte("1")), w.seal("ord-1", "b", nil)
	w.add(first)
	w.commit(func(tx *sql.Tx) {
		if err := w.outbox.Add(w.Context(), tx, w.seal("ord-1", "a", []byte("2"))); !errors.Is(err, outbox.ErrDuplicate) {
			w.Errorf("error %v, want ErrDuplicate", err)
		}
		w.exec(tx, "INSERT INTO business (id) VALUES ('after')")
		w.ok(w.outbox.Add(w.Context(), tx, other))
		if err := w.outbox.Add(w.Context(), tx, other); !errors.Is(err, outbox.ErrDuplicate) {
			w.Errorf("error %v within one transaction, want ErrDuplicate", err)
		}
	})
	w.want(map[string]int{"business": 1, "outbox": 2})
	var data []byte
	w.ok(w.db.QueryRowContext(w.Context(), "SELECT data FROM outbox WHERE message_id = $1", string(event.EventKeyOf(first))).Scan(&data))
	if string(data) != "1" {
		w.Errorf("the first event's data is %q now", data)
	}
	// The id of another source is another one.
	e, err := w.names.Seal(event.Draft{Type: "order.placed.v1", Key: "ord-1", ID: "a"}, "/elsewhere")
	w.ok(err)
	w.add(e)
}

func contentIDs(w *writer) {
	of := func(document any) event.Event {
		id, err := event.ContentID(document)
		w.ok(err)
		return w.seal("ord-1", id, nil)
	}
	w.add(of(map[string]any{"order": "1", "items": 2}))
	w.commit(func(tx *sql.Tx) {
		if err := w.outbox.Add(w.Context(), tx, of(map[string]any{"items": 2, "order": "1"})); !errors.Is(err, outbox.ErrDuplicate) {
			w.Errorf("error %v for the same content, want ErrDuplicate", err)
		}
		w.ok(w.outbox.Add(w.Context(), tx, of(map[string]any{"items": 3, "order": "1"})))
	})
	w.want(map[string]int{"outbox": 2})
}

func refused(w *writer) {
	good := w.seal("ord-1", "good", nil)
	untyped := good.Clone()
	untyped.SetType("not a type")
	unidentified := good.Clone()
	unidentified.SetID("")
	w.commit(func(tx *sql.Tx) {
		for _, tt := range []struct {
			event event.Event
			is    error
		}{{untyped, event.ErrInvalidType}, {unidentified, event.ErrInvalidEvent}, {event.Event{}, nil}} {
			err := w.outbox.Add(w.Context(), tx, good, tt.event)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				w.Errorf("error %v, want %v", err, tt.is)
			}
		}
		w.exec(tx, "INSERT INTO business (id) VALUES ('after')")
	})
	w.want(map[string]int{"business": 1, "outbox": 0})
	w.ok(w.outbox.Add(w.Context(), nil)) // nothing to do needs no transaction
}

func prefixes(w *writer) {
	outboxes := map[string]*outbox.Outbox{"outbox": w.outbox}
	for _, prefix := range []string{"shop_", "shop_outbox_", "a"} {
		o := w.outboxOf(w.db, prefix)
		w.ok(o.Migrate(w.Context()))
		outboxes[prefix+"outbox"] = o
	}
	e := w.seal("ord-1", "same", nil)
	for table, o := range outboxes {
		w.commit(func(tx *sql.Tx) { w.ok(o.Add(w.Context(), tx, e)) })
		if n := w.count(table); n != 1 {
			w.Errorf("%d rows in %s", n, table)
		}
	}
	w.relay(outboxes["shop_outbox"], w.stream())
	w.await("shop_outbox WHERE status = 'PUBLISHED'", 1)
	w.want(map[string]int{"outbox WHERE status = 'PENDING'": 1, "aoutbox WHERE status = 'PENDING'": 1, "shop_outbox_outbox WHERE status = 'PENDING'": 1})
}

// queued has a writer hold the database: others of its process come after it,
// in their order, and nobody who reads waits.
func queued(w *writer) {
	holder, err := w.db.BeginTx(w.Context(), nil)
	w.ok(err)
	w.exec(holder, "INSERT INTO business (id) VALUES ('holder')")
	const n = 16
	ended := make(chan error, n)
	for i := range n {
		e := w.seal("ord-1", fmt.Sprint(i), nil)
		go func() { ended <- write(w.Context(), w.db, w.outbox, e, nil) }()
	}
	held := time.NewTimer(500 * time.Millisecond)
	for reading := true; reading; {
		w.count("business")
		select {
		case <-held.C:
			reading = false
		default:
		}
	}
	w.ok(holder.Commit())
	for range n {
		if err := <-ended; err != nil {
			w.Error(err)
		}
	}
	w.want(map[string]int{"business": n + 1, "outbox": n})
}
