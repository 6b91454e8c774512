package outboxtest

import (
	"errors"
	"sync"

	"github.com/farandole/farandole/outbox"
)

// migratedAtOnce migrates an empty database by 8 processes and 8 goroutines with
// pools of their own, twice.
func migratedAtOnce(r *rig) {
	r.target = r.Create(r.T)
	for range 2 {
		var all sync.WaitGroup
		for range 8 {
			_, o := r.open()
			all.Go(func() {
				if err := o.Migrate(r.Context()); err != nil {
					r.Error(err)
				}
			})
		}
		works := make([]work, 8)
		for i := range works {
			works[i].Migrate = true
		}
		r.processes(works...)
		all.Wait()
	}
	r.db, r.outbox = r.open()
	r.add(r.seal("ord-1", "", nil))
	r.want(map[string]int{"outbox": 1, "inbox": 0})
}

func newerTables(r *rig) {
	r.exec("INSERT INTO outbox_version (version_id, is_applied) VALUES (99999, $1)", true)
	if err := r.outbox.Migrate(r.Context()); !errors.Is(err, outbox.ErrSchema) {
		r.Errorf("error %v, want ErrSchema", err)
	}
	// Tables that were never made are ErrSchema too, or else the database's word.
	missing := r.outboxOf(r.db, "missing_")
	tx, err := r.db.BeginTx(r.Context(), nil)
	r.ok(err)
	if err := missing.Add(r.Context(), tx, r.seal("ord-1", "", nil)); !errors.Is(err, outbox.ErrDatabase) {
		r.Errorf("error %v, want ErrDatabase", err)
	}
	r.ok(tx.Rollback())
}
