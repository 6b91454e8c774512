package outboxtest

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/outbox"
)

func manyProcesses(r *rig) {
	const n, each = 8, 100
	r.relay(outbox.RelayConfig{})
	works := make([]work, n)
	for i := range works {
		works[i].Write = &writeWork{Process: i, Events: each}
	}
	works[n/2].Write.Hold = 2 * time.Second
	ids := r.processes(works...)
	if len(ids) != n*each {
		r.Errorf("%d transactions were reported as committed, want %d", len(ids), n*each)
	}
	// What was reported is there, and what was reported as an error is not.
	r.want(map[string]int{"business": len(ids), "outbox": len(ids)})
	for _, id := range ids {
		if n := r.count("business WHERE id = '" + id + "'"); n != 1 {
			r.Errorf("%s: %d rows", id, n)
		}
	}
	r.eventually(counts{outbox.Published: len(ids)})
	r.wantOnce(len(ids))
}

// watched has a watch say that another process has committed.
func watched(r *rig) {
	watcher, ok := r.db.Driver().(outbox.Watcher)
	if !ok {
		if r.Dialect == outbox.SQLite {
			r.Error("nobody tells of commits to the file")
		}
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	woken := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.Watch(ctx, r.db, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	within := func(what string) {
		r.Helper()
		select {
		case <-woken:
		case err := <-ended:
			r.Fatalf("%s: the watch has ended: %v", what, err)
		case <-time.After(soon):
			r.Fatalf("%s: nobody was woken", what)
		}
	}
	within("at the beginning")
	for range 3 {
		r.processes(work{Write: &writeWork{Events: 1}})
		within("a commit of another process")
		r.exec("DELETE FROM outbox")
		r.exec("DELETE FROM business")
		settle(woken)
	}
	r.add(r.seal("ord-1", "own", nil)) // by hand or by Add, in this process too
	within("a commit of this process")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		r.Errorf("error %v", err)
	}
}

func settle(c <-chan struct{}) {
	for {
		select {
		case <-c:
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
}
