package outboxtest

import (
	"errors"
	"sync"

	"github.com/farandole/farandole/outbox"
)

// migratedAtOnce migrates an empty database by 8 processes and 8 goroutines with
// pools of their own, twice.
func migratedAtOnce(w *writer) {
	w.target = w.Create(w.T)
	for range 2 {
		var all sync.WaitGroup
		for range 8 {
			o := w.outboxOf(w.open(), "")
			all.Go(func() {
				if err := o.Migrate(w.Context()); err != nil {
					w.Error(err)
				}
			})
		}
		works := make([]work, 8)
		for i := range works {
			works[i].Migrate = true
		}
		w.processes(works...)
		all.Wait()
	}
	w.db = w.open()
	w.outbox = w.outboxOf(w.db, "")
	w.add(w.seal("ord-1", "", nil))
	w.want(map[string]int{"outbox": 1, "inbox": 0})
}

func newerTables(w *writer) {
	w.exec(w.db, "INSERT INTO outbox_version (version_id, is_applied) VALUES (99999, $1)", true)
	if err := w.outbox.Migrate(w.Context()); !errors.Is(err, outbox.ErrSchema) {
		w.Errorf("error %v, want ErrSchema", err)
	}
	// Tables that were never made are ErrSchema too, or else the database's word.
	missing := w.outboxOf(w.db, "missing_")
	tx, err := w.db.BeginTx(w.Context(), nil)
	w.ok(err)
	if err := missing.Add(w.Context(), tx, w.seal("ord-1", "", nil)); !errors.Is(err, outbox.ErrDatabase) {
		w.Errorf("error %v, want ErrDatabase", err)
	}
	w.ok(tx.Rollback())
}
