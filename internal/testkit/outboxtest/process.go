package outboxtest

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// assignment is the environment variable that has a process do something else
// than the suite that started it.
const assignment = "OUTBOXTEST_ASSIGNMENT"

// work is what such a process does: one of the three.
type work struct {
	Target  string
	Names   event.Names
	Relay   *relayWork
	Migrate bool
	Write   *writeWork
}

// relayWork is to be a relay until the end.
type relayWork struct {
	URL   string // defaults to the rig's server
	Batch int
	Lease time.Duration
}

// writeWork is to write Events rows.
type writeWork struct {
	Process, Events int // Process tells writers apart
	// Hold is how long the transaction in the middle is held open.
	Hold time.Duration
}

// written is what a writer prints for each event whose transaction it was told
// is committed.
const written = "written "

// doAssigned does this process's work; false in a process that has none.
func doAssigned(t *testing.T, f Factory) bool {
	t.Helper()
	text, ok := os.LookupEnv(assignment)
	if !ok {
		return false
	}
	var w work
	err := json.Unmarshal([]byte(text), &w)
	if err == nil {
		err = w.do(t.Context(), f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

func (w work) do(ctx context.Context, f Factory) error {
	db, err := f.Open(w.Target)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // the process ends
	o, err := outbox.New(db, outbox.Config{Dialect: f.Dialect, Names: w.Names, Source: "/outboxtest"})
	if err != nil {
		return err
	}
	switch {
	case w.Relay != nil:
		return w.Relay.do(ctx, w.Names, o)
	case w.Migrate:
		return o.Migrate(ctx)
	}
	return w.Write.do(ctx, db, o)
}

func (w relayWork) do(ctx context.Context, names event.Names, o *outbox.Outbox) error {
	go func() { // whoever has started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an end is an end
		os.Exit(1)
	}()
	b, err := bus.Connect(ctx, bus.Config{URL: w.URL, Names: names, Wait: soon})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // the process ends
	relay, err := outbox.NewRelay(o, b, outbox.RelayConfig{Batch: w.Batch, Lease: w.Lease, Logger: zerolog.New(os.Stderr)})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func (w writeWork) do(ctx context.Context, db *sql.DB, o *outbox.Outbox) error {
	var errs []error
	for i := range w.Events {
		id := fmt.Sprintf("%d-%d", w.Process, i)
		e, err := o.Seal(event.Draft{Type: placed, Key: event.Key(fmt.Sprint("ord-", i%10)), ID: id})
		if err != nil {
			return err
		}
		var hold <-chan time.Time
		if i == w.Events/2 && w.Hold > 0 {
			hold = time.After(w.Hold)
		}
		if err := write(ctx, db, o, e, hold); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
			continue
		}
		fmt.Fprintln(os.Stdout, written+id)
	}
	return errors.Join(errs...)
}

// write commits a business row and an event, after hold if that is not nil.
func write(ctx context.Context, db *sql.DB, o *outbox.Outbox, e event.Event, hold <-chan time.Time) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO business (id) VALUES ($1)", e.ID())
	if err == nil {
		err = o.Add(ctx, tx, e)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if hold != nil {
		<-hold
	}
	return tx.Commit()
}

// command starts the test binary with the test that runs now and this work.
func (r *rig) command(ctx context.Context, w work) *exec.Cmd {
	r.Helper()
	w.Target, w.Names = r.target, r.bus.Names()
	text, err := json.Marshal(w)
	r.ok(err)
	test, _, _ := strings.Cut(r.Name(), "/")
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.count=1") //nolint:gosec // this program
	cmd.Env = append(os.Environ(), assignment+"="+string(text))
	return cmd
}

// processes has each of works done in a process of its own, all at once, and
// returns the ids that they say are written.
func (r *rig) processes(works ...work) (ids []string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, w := range works {
		cmd := r.command(ctx, w)
		cmd.WaitDelay = time.Minute
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				r.Errorf("process %d: %v\n%s", i, err, out)
			}
			for line := bufio.NewScanner(bytes.NewReader(out)); line.Scan(); {
				if id, ok := strings.CutPrefix(line.Text(), written); ok {
					ids = append(ids, id)
				}
			}
		})
	}
	all.Wait()
	return ids
}

// relayProcess is a relay in a process of its own.
type relayProcess struct {
	*rig
	cmd   *exec.Cmd
	stdin io.Closer
	log   lines
}

// relayProcess starts a relay of the rig's outbox. It ends when it is killed, at
// the end of the test, or with this process.
func (r *rig) relayProcess(w relayWork) *relayProcess {
	r.Helper()
	if w.URL == "" {
		w.URL = r.server.URL()
	}
	p := &relayProcess{rig: r, cmd: r.command(context.WithoutCancel(r.Context()), work{Relay: &w})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	r.ok(err)
	r.ok(p.cmd.Start())
	r.Cleanup(func() {
		p.kill()
		if r.Failed() {
			r.Logf("the relay process has said\n%s", &p.log)
		}
	})
	return p
}

// kill kills the process with SIGKILL and waits for its end. Killing it twice is fine.
func (p *relayProcess) kill() {
	p.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil {
		p.Error(err)
	}
	_ = p.cmd.Wait() //nolint:errcheck // it was killed, which is an error
}
