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

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// assignment is what the environment variable of this name tells a process to do.
const assignment = "OUTBOXTEST_ASSIGNMENT"

// work is what a process does in place of the suite that started it.
type work struct {
	Target string
	Names  event.Names
	// Migrate the tables; else write.
	Migrate bool
	// Process tells writers apart; each adds Events events.
	Process, Events int
	// Hold is how long the one in the middle holds its transaction open.
	Hold time.Duration
}

// assigned returns this process's work, if it is such a process.
func assigned(t *testing.T) (w work, ok bool) {
	t.Helper()
	text, ok := os.LookupEnv(assignment)
	if !ok {
		return w, false
	}
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w, true
}

// written is what a process prints for each event whose transaction it was told
// is committed.
const written = "written "

func (k work) do(t *testing.T, f Factory) {
	t.Helper()
	db, err := f.Open(k.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the process ends
	o, err := outbox.New(db, outbox.Config{Dialect: f.Dialect, Names: k.Names, Source: "/outboxtest"})
	if err != nil {
		t.Fatal(err)
	}
	if k.Migrate {
		if err := o.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i := range k.Events {
		id := fmt.Sprintf("%d-%d", k.Process, i)
		e, err := o.Seal(event.Draft{Type: "order.placed.v1", Key: event.Key(fmt.Sprint("ord-", i%10)), ID: id})
		if err != nil {
			t.Fatal(err)
		}
		var hold <-chan time.Time
		if i == k.Events/2 && k.Hold > 0 {
			hold = time.After(k.Hold)
		}
		if err := write(t.Context(), db, o, e, hold); err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		fmt.Fprintln(os.Stdout, written+id)
	}
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

// processes runs each of works in a process of its own, all at once, and
// returns the ids that they say are written.
func (w *writer) processes(works ...work) (ids []string) {
	w.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, k := range works {
		k.Target, k.Names, k.Process = w.target, w.names, i
		all.Go(func() {
			out, err := k.run(w.T)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.Errorf("process %d: %v\n%s", i, err, out)
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

// run starts the test binary with the test that runs now.
func (k work) run(t *testing.T) ([]byte, error) {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.count=1") //nolint:gosec // it is this program
	cmd.Env = append(os.Environ(), assignment+"="+string(text))
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Writer(&out), io.Writer(&out)
	err = cmd.Run()
	return out.Bytes(), err
}

func manyProcesses(w *writer) {
	const n, each = 8, 100
	b := w.stream()
	w.relay(w.outbox, b)
	works := make([]work, n)
	for i := range works {
		works[i].Events = each
	}
	works[n/2].Hold = 2 * time.Second
	ids := w.processes(works...)
	if len(ids) != n*each {
		w.Errorf("%d transactions were reported as committed, want %d", len(ids), n*each)
	}
	// What was reported is there, and what was reported as an error is not.
	w.want(map[string]int{"business": len(ids), "outbox": len(ids)})
	for _, id := range ids {
		if n := w.count("business WHERE id = '" + id + "'"); n != 1 {
			w.Errorf("%s: %d rows", id, n)
		}
	}
	w.published(len(ids))
	stream, err := b.JetStream().Stream(w.Context(), w.names.EventsStream())
	w.ok(err)
	info, err := stream.Info(w.Context())
	w.ok(err)
	if info.State.Msgs != uint64(len(ids)) {
		w.Errorf("%d messages are stored, want %d", info.State.Msgs, len(ids))
	}
}

// watched has a watch say that another process has committed.
func watched(w *writer) {
	watcher, ok := w.db.Driver().(outbox.Watcher)
	if !ok {
		if w.Dialect == outbox.SQLite {
			w.Error("nobody tells of commits to the file")
		}
		return
	}
	ctx, cancel := context.WithCancel(w.Context())
	woken := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.Watch(ctx, w.db, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	within := func(what string) {
		w.Helper()
		select {
		case <-woken:
		case err := <-ended:
			w.Fatalf("%s: the watch has ended: %v", what, err)
		case <-time.After(soon):
			w.Fatalf("%s: nobody was woken", what)
		}
	}
	within("at the beginning")
	for range 3 {
		w.processes(work{Events: 1})
		within("a commit of another process")
		w.exec(w.db, "DELETE FROM outbox")
		w.exec(w.db, "DELETE FROM business")
		settle(woken)
	}
	w.add(w.seal("ord-1", "own", nil)) // by hand or by Add, in this process too
	within("a commit of this process")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		w.Errorf("error %v", err)
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
