package outboxtest

import (
	"database/sql"
	"testing"

	"github.com/farandole/farandole/event"
)

// RunWrite runs the suite of what writes rows and what looks after them, as
// subtests of t, in parallel. It starts its test again in processes of their
// own: t's name must be that of a function, and the test must do nothing else.
func RunWrite(t *testing.T, f Factory) {
	t.Helper()
	if doAssigned(t, f) {
		return
	}
	t.Parallel()
	for name, test := range map[string]func(*rig){
		"commits and rolls back with the business row":             committed,
		"an id is added once":                                      duplicate,
		"content ids":                                              contentIDs,
		"a refused event leaves nothing":                           refused,
		"several outboxes in a database":                           prefixes,
		"data is published to the bit":                             exactData,
		"a row inserted by hand is the same event":                 byHand,
		"goroutines and processes migrate at once, and again":      migratedAtOnce,
		"tables newer than the program":                            newerTables,
		"writers in 8 processes, one of which holds the lock":      manyProcesses,
		"a watch tells of commits in other processes":              watched,
		"parked rows are listed, redriven and discarded":           parked,
		"parked rows that nobody can read are listed all the same": unreadable,
		"statistics": statistics,
		"reads go on, and writers of one process queue, while one holds": queued,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, f, place{})
			r.exec("CREATE TABLE business (id TEXT PRIMARY KEY)")
			test(r)
		})
	}
}

// seal makes an event of a key; an empty id is a random one.
func (r *rig) seal(key, id string, data []byte) event.Event {
	r.Helper()
	e, err := r.outbox.Seal(event.Draft{Type: placed, Key: event.Key(key), ID: id, ContentType: "application/octet-stream", Data: data})
	r.ok(err)
	return e
}

// commit commits what do does.
func (r *rig) commit(do func(tx *sql.Tx)) {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), nil)
	r.ok(err)
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	do(tx)
	r.ok(tx.Commit())
}

// want compares counts of tables.
func (r *rig) want(counts map[string]int) {
	r.Helper()
	for from, want := range counts {
		if got := r.count(from); got != want {
			r.Errorf("%d rows in %s, want %d", got, from, want)
		}
	}
}
