//go:build unix

package outboxtest

import (
	"context"
	"database/sql"
	"syscall"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/outbox"
)

// stopped stops a relay process by SIGSTOP while it holds rows, has another
// relay take them over, and lets the first go on.
func stopped(r *rig) {
	const n = 2000
	r.add(r.events(10, keys("ord-", n/10)...)...)
	first := r.relayProcess(relayWork{Lease: lease, Batch: 20})
	r.stopWithRows(first)
	second := r.relay(outbox.RelayConfig{Lease: lease})
	r.eventually(counts{outbox.Published: n})
	second.stop()
	latest := r.newest()
	first.signal(syscall.SIGCONT)
	r.add(r.event("more", "more-0")) // what it publishes comes after what it does with its old claims
	r.eventually(counts{outbox.Published: n + 1})
	first.kill()
	r.exec("DELETE FROM outbox WHERE key = 'more'")
	if got := r.newest(); got != latest {
		r.Errorf("a row is marked at %s, all were at %s", got, latest)
	}
	r.wantOrder(r.wantOnce(n + 1))
}

func (p *relayProcess) signal(s syscall.Signal) {
	p.Helper()
	p.ok(p.cmd.Process.Signal(s))
}

// stopWithRows stops the process at a moment when it holds rows, and does not
// hold SQLite's one lock: while a stopped process has that nobody can write, and
// no relay could change it.
func (r *rig) stopWithRows(p *relayProcess) {
	r.Helper()
	bustest.Eventually(r, soon, func() bool {
		if r.count("outbox WHERE status = 'PROCESSING'") == 0 {
			return false
		}
		p.signal(syscall.SIGSTOP)
		if r.count("outbox WHERE status = 'PROCESSING'") > 0 && r.writable() {
			return true
		}
		p.signal(syscall.SIGCONT)
		return false
	})
}

func (r *rig) writable() bool {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return false
	}
	return tx.Rollback() == nil
}

// newest is when a row was published last.
func (r *rig) newest() (at string) {
	r.Helper()
	var last sql.NullString
	r.ok(r.db.QueryRowContext(r.Context(), "SELECT max(published_at) FROM outbox").Scan(&last))
	return last.String
}
