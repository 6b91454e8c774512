package outboxtest

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

func committed(r *rig) {
	r.commit(func(tx *sql.Tx) {
		r.execIn(tx, "INSERT INTO business (id) VALUES ('kept')")
		r.ok(r.outbox.Add(r.Context(), tx, r.seal("kept", "", nil), r.seal("kept", "", nil)))
	})
	tx, err := r.db.BeginTx(r.Context(), nil)
	r.ok(err)
	r.execIn(tx, "INSERT INTO business (id) VALUES ('undone')")
	r.ok(r.outbox.Add(r.Context(), tx, r.seal("undone", "", nil)))
	r.ok(tx.Rollback())
	r.want(map[string]int{"business": 1, "outbox": 2, "outbox WHERE key = 'kept' AND status = 'PENDING' AND attempts = 0": 2})
}

func duplicate(r *rig) {
	first, other := r.seal("ord-1", "a", []byte("1")), r.seal("ord-1", "b", nil)
	r.add(first)
	r.commit(func(tx *sql.Tx) {
		if err := r.outbox.Add(r.Context(), tx, r.seal("ord-1", "a", []byte("2"))); !errors.Is(err, outbox.ErrDuplicate) {
			r.Errorf("error %v, want ErrDuplicate", err)
		}
		r.execIn(tx, "INSERT INTO business (id) VALUES ('after')")
		r.ok(r.outbox.Add(r.Context(), tx, other))
		if err := r.outbox.Add(r.Context(), tx, other); !errors.Is(err, outbox.ErrDuplicate) {
			r.Errorf("error %v within one transaction, want ErrDuplicate", err)
		}
	})
	r.want(map[string]int{"business": 1, "outbox": 2})
	var data []byte
	r.ok(r.db.QueryRowContext(r.Context(), "SELECT data FROM outbox WHERE message_id = $1", string(event.EventKeyOf(first))).Scan(&data))
	if string(data) != "1" {
		r.Errorf("the first event's data is %q now", data)
	}
	// The id of another source is another one.
	e, err := r.bus.Names().Seal(event.Draft{Type: "order.placed.v1", Key: "ord-1", ID: "a"}, "/elsewhere")
	r.ok(err)
	r.add(e)
}

func contentIDs(r *rig) {
	of := func(document any) event.Event {
		id, err := event.ContentID(document)
		r.ok(err)
		return r.seal("ord-1", id, nil)
	}
	r.add(of(map[string]any{"order": "1", "items": 2}))
	r.commit(func(tx *sql.Tx) {
		if err := r.outbox.Add(r.Context(), tx, of(map[string]any{"items": 2, "order": "1"})); !errors.Is(err, outbox.ErrDuplicate) {
			r.Errorf("error %v for the same content, want ErrDuplicate", err)
		}
		r.ok(r.outbox.Add(r.Context(), tx, of(map[string]any{"items": 3, "order": "1"})))
	})
	r.want(map[string]int{"outbox": 2})
}

func refused(r *rig) {
	good := r.seal("ord-1", "good", nil)
	untyped := good.Clone()
	untyped.SetType("not a type")
	unidentified := good.Clone()
	unidentified.SetID("")
	r.commit(func(tx *sql.Tx) {
		for _, tt := range []struct {
			event event.Event
			is    error
		}{{untyped, event.ErrInvalidType}, {unidentified, event.ErrInvalidEvent}, {event.Event{}, nil}} {
			err := r.outbox.Add(r.Context(), tx, good, tt.event)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				r.Errorf("error %v, want %v", err, tt.is)
			}
		}
		r.execIn(tx, "INSERT INTO business (id) VALUES ('after')")
	})
	r.want(map[string]int{"business": 1, "outbox": 0})
	r.ok(r.outbox.Add(r.Context(), nil)) // nothing to do needs no transaction
}

func prefixes(r *rig) {
	outboxes := map[string]*outbox.Outbox{"outbox": r.outbox}
	for _, prefix := range []string{"shop_", "shop_outbox_", "a"} {
		o := r.outboxOf(r.db, prefix)
		r.ok(o.Migrate(r.Context()))
		outboxes[prefix+"outbox"] = o
	}
	e := r.seal("ord-1", "same", nil)
	for table, o := range outboxes {
		r.commit(func(tx *sql.Tx) { r.ok(o.Add(r.Context(), tx, e)) })
		if n := r.count(table); n != 1 {
			r.Errorf("%d rows in %s", n, table)
		}
	}
	r.relayOn(outboxes["shop_outbox"], r.bus, outbox.RelayConfig{})
	r.becomes(1, "shop_outbox WHERE status = 'PUBLISHED'")
	r.want(map[string]int{"outbox WHERE status = 'PENDING'": 1, "aoutbox WHERE status = 'PENDING'": 1, "shop_outbox_outbox WHERE status = 'PENDING'": 1})
}

// queued has a writer hold the database: others of its process come after it,
// in their order, and nobody who reads waits.
func queued(r *rig) {
	holder, err := r.db.BeginTx(r.Context(), nil)
	r.ok(err)
	r.execIn(holder, "INSERT INTO business (id) VALUES ('holder')")
	const n = 16
	ended := make(chan error, n)
	for i := range n {
		e := r.seal("ord-1", fmt.Sprint(i), nil)
		go func() { ended <- write(r.Context(), r.db, r.outbox, e, nil) }()
	}
	held := time.NewTimer(500 * time.Millisecond)
	for reading := true; reading; {
		r.count("business")
		select {
		case <-held.C:
			reading = false
		default:
		}
	}
	r.ok(holder.Commit())
	for range n {
		if err := <-ended; err != nil {
			r.Error(err)
		}
	}
	r.want(map[string]int{"business": n + 1, "outbox": n})
}
