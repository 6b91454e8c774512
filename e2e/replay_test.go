package e2e_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
)

// receiver is an HTTP receiver that refuses what it is told to, and the system whose
// events a webhook named payment brings it.
type receiver struct {
	t      *testing.T
	url    string
	name   string
	server string
	http   int
	bus    *bus.Bus

	mu      sync.Mutex
	refuses func(body string) bool
	taken   map[string]int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, taken: map[string]int{}, http: freePort(t), name: "payment", refuses: func(string) bool { return true }}
	answers := httptest.NewServer(http.HandlerFunc(r.answer))
	t.Cleanup(answers.Close)
	r.url = answers.URL
	r.server = bustest.StartServer(t, bustest.ServerConfig{}).URL()
	r.run(0, "topology", "apply")
	r.bus = bustest.Connect(t, bus.Config{URL: r.server})
	return r
}

func (r *receiver) answer(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || r.refuses(string(body)) {
		http.Error(w, "no such account", http.StatusUnprocessableEntity)
		return
	}
	r.taken[string(body)]++
}

// refuse has events be refused whose data hold one of these texts; "" is in all.
func (r *receiver) refuse(texts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = func(body string) bool {
		for _, text := range texts {
			if strings.Contains(body, text) {
				return true
			}
		}
		return false
	}
}

// took is how many events the receiver has taken, and fails the test if it took one twice.
func (r *receiver) took() int {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for body, n := range r.taken {
		if n > 1 {
			r.t.Errorf("taken %d times: %s", n, body)
		}
	}
	return len(r.taken)
}

// start runs the webhook.
func (r *receiver) start() *process {
	r.t.Helper()
	p := start(r.t, "webhook", "webhook", r.url, "--name", r.name, "--type", "order.placed.v1",
		"--server", r.server, "--http", fmt.Sprintf("127.0.0.1:%d", r.http))
	p.ready(localURL(r.http))
	return p
}

// run runs a command, which has to end with this exit code.
func (r *receiver) run(code int, args ...string) result {
	r.t.Helper()
	got := run(r.t, append(args, "--server", r.server)...)
	if got.code != code {
		r.t.Fatalf("%v: exit %d, want %d\n%s%s", args, got.code, code, got.stdout, got.stderr)
	}
	return got
}

// says runs a command of dlq, which has to say something.
func (r *receiver) says(code int, want string, args ...string) result {
	r.t.Helper()
	got := r.run(code, append([]string{"dlq"}, args...)...)
	if !strings.Contains(got.stdout+got.stderr, want) {
		r.t.Errorf("dlq %v: want %q of\n%s%s", args, want, got.stdout, got.stderr)
	}
	return got
}

// deadLetters publishes n events and waits until all are dead letters.
func (r *receiver) deadLetters(n int) []string {
	r.t.Helper()
	r.publish(0, n)
	return r.await(n)
}

// await waits for so many letters, none being replayed, and returns their ids in the order
// of their keys.
func (r *receiver) await(n int) (ids []string) {
	r.t.Helper()
	type letter struct {
		ID, Key string
		Replay  *struct{}
	}
	bustest.Eventually(r.t, patience, func() error {
		var export strings.Builder
		if _, err := dlq.Open(r.bus, nil).Export(r.t.Context(), &export, dlq.Filter{}); err != nil {
			return err
		}
		var letters []letter
		for line := range strings.Lines(export.String()) {
			var l letter
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				r.t.Fatal(err)
			}
			if l.Replay == nil {
				letters = append(letters, l)
			}
		}
		if len(letters) != n {
			return fmt.Errorf("%d letters, want %d", len(letters), n)
		}
		slices.SortFunc(letters, func(a, b letter) int {
			return cmp.Or(cmp.Compare(len(a.Key), len(b.Key)), cmp.Compare(a.Key, b.Key))
		})
		ids = nil
		for _, l := range letters {
			ids = append(ids, l.ID)
		}
		return nil
	})
	return ids
}

func TestReplay_tells_the_truth_at_each_step(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	p := r.start()
	id := r.deadLetters(1)[0]
	p.stopCleanly()

	// A short id is as good, and a question shows what it is about.
	short := id[:len("payment.")+6]
	r.says(0, "id             "+id, "show", short)
	r.says(0, id, "show", short[len("payment."):], "--json")
	r.says(2, "--yes", "discard", short)

	// Nobody is there.
	r.says(0, "1 selected: 1 replayed", "replay", id)
	r.says(0, "replayed, 0 workers", "list")
	r.says(0, "replayed, waiting for payment, none of its workers is there", "show", id)
	r.says(0, "1 letter is being replayed to payment: 1 waiting", "stats")
	r.says(0, `"replay":{"number":1,`, "export")
	r.says(0, id+"  in progress", "replay", id)
	r.says(2, "--timeout", "replay", id, "--timeout", "1s")
	r.says(4, "nobody is there: no worker of payment is there", "replay", id, "--wait")
	r.says(4, "--timeout 100ms is over", "replay", id, "--wait", "--timeout", "100ms")
	r.says(0, "1 taken back", "replay", "--cancel", id)
	r.says(0, "permanent", "list")

	// It fails again, and is handled in the end.
	r.says(0, "1 replayed", "replay", id)
	r.start()
	r.await(1)
	r.says(0, "parked by replay 2", "show", id)
	got := r.says(3, "1 selected: 1 failed again", "replay", id, "--wait")
	if !strings.Contains(got.stdout, id+"  failed again") {
		t.Errorf("failed again: %+v", got)
	}
	r.says(0, "dead-lettered  3 times", "show", id)
	r.refuse()
	r.says(0, "1 selected: 1 handled", "replay", id, "--wait")
	bustest.Eventually(t, patience, func() bool { return listLetters(t, r.run(0, "dlq", "list", "--json").stdout).Total == 0 })
	r.says(0, "handled by replay 4", "show", id)
	r.says(0, "1 already handled", "replay", id)
	if n := r.took(); n != 1 {
		t.Errorf("%d events taken", n)
	}
}

func TestReplay_of_many_in_steps(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.start()
	const n = 14
	r.deadLetters(n)
	r.says(2, "share", "replay", "--all", "--canary", "--max-failed", "many")

	// The first one is refused: nothing else is sent.
	got := r.says(3, "1 of the last 1, and 10 % may", "replay", "--all", "--canary")
	if !strings.Contains(got.stderr, "14 selected: 1 failed again; 13 not reached") {
		t.Errorf("canary: %+v", got)
	}
	// One of ten is as many as may; it is the second step, and the third one is the rest.
	r.refuse("ord-7-")
	r.says(3, "14 selected: 1 failed again, 13 handled", "replay", "--all", "--canary")
	if r.took() != n-1 {
		t.Errorf("%d events taken, want %d", r.took(), n-1)
	}
	r.await(1)
	r.refuse()
	r.says(0, "1 handled", "replay", "--all", "--first", "5", "--wait", "--rate", "50")
	r.await(0)
	if r.took() != n {
		t.Errorf("%d events taken, want %d", r.took(), n)
	}
}

func TestBulk_replays_at_once(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.start()
	const n = 12
	r.deadLetters(n)
	r.refuse()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if got := run(t, "dlq", "replay", "--consumer", "payment", "--wait", "--server", r.server); got.code != 0 {
				t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
			}
		})
	}
	wg.Wait()
	r.await(0)
	if r.took() != n {
		t.Errorf("%d events taken, want %d", r.took(), n)
	}
}

func TestEdit_before_a_replay(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	p := r.start()
	ids := r.deadLetters(2)
	r.refuse("ord-")

	r.says(2, "EDITOR", "edit", ids[0])
	editor := []string{`EDITOR=sed -i s/ord-0-/mended-0/`}
	edit := func(code int, want string, env []string, args ...string) {
		t.Helper()
		got := runWith(t, env, append(args, "--server", r.server)...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Errorf("%v: exit %d, want %d and %q of\n%s%s", args, got.code, code, want, got.stdout, got.stderr)
		}
	}
	edit(1, "nothing is changed", []string{"EDITOR=false"}, "dlq", "edit", ids[0])
	edit(1, "the data is not JSON", []string{"EDITOR=sed -i s/}//"}, "dlq", "edit", ids[0])
	edit(0, "+   \"order\": \"mended-0\"", editor, "dlq", "edit", ids[0])
	edit(0, "nothing changed", editor, "dlq", "edit", ids[0])
	r.says(0, "edited by ", "show", ids[0])
	r.says(1, `id is "x", not `, "replay", ids[0], "--set-header", "ce-id=x")
	r.says(2, "of one letter", "replay", "--all", "--data", "{}")
	r.says(0, "1 handled", "replay", ids[0], "--wait", "--set-header", "ce-priority=high")

	file := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(file, []byte(`{"order":"mended-1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.says(0, "1 handled", "replay", ids[1], "--wait", "--data", "@"+file)
	r.await(0)
	r.mu.Lock()
	if r.taken[`{"order":"mended-0"}`] != 1 || r.taken[`{"order":"mended-1"}`] != 1 {
		t.Errorf("taken %v", r.taken)
	}
	r.mu.Unlock()
	p.stopCleanly()
}

func TestLetters_are_exported_imported_and_given_to_a_renamed_service(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	p := r.start()
	ids := r.deadLetters(2)
	file := filepath.Join(t.TempDir(), "letters")
	if err := os.WriteFile(file, []byte(r.run(0, "dlq", "export").stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run(0, "dlq", "discard", ids[0], "--yes")
	r.says(0, "2 selected: 1 exists, 1 imported", "import", file)
	r.says(0, "imported by ", "show", ids[0])
	p.stopCleanly()

	r.says(1, "no consumer billing exists", "replay", "--all", "--to", "billing")
	// A consumer with a new name is given all events that are kept. What it has handled by
	// then is not handled again.
	r.name = "billing"
	r.refuse("ord-1-")
	r.start()
	bustest.Eventually(t, patience, func() bool { return r.took() == 1 && len(r.await(3)) == 3 })
	r.refuse()
	r.says(0, "2 selected: 1 already handled, 1 handled", "replay", "--consumer", "payment", "--to", "billing", "--wait")
	r.await(0)
	if r.took() != 2 {
		t.Errorf("%d events taken", r.took())
	}
	r.says(0, "discarded at", "show", ids[0])
	r.says(0, "handled by ", "show", strings.Replace(ids[0], "payment", "billing", 1))
}

// publish stores n events as any client can.
func (r *receiver) publish(from, n int) {
	r.t.Helper()
	for i := from; i < from+n; i++ {
		key := fmt.Sprintf("ord-%d", i)
		_, err := r.bus.JetStream().PublishMsg(r.t.Context(), &nats.Msg{
			Subject: "events.order.placed.v1." + key,
			Header: nats.Header{
				"ce-specversion": {"1.0"}, "ce-id": {key}, "ce-source": {"/e2e"}, "ce-type": {"order.placed.v1"},
				"ce-partitionkey": {key}, "ce-datacontenttype": {"application/json"},
			},
			Data: fmt.Appendf(nil, `{"order":"%s-"}`, key),
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// A replay is killed half way, another one interrupted; a third one does the rest.
// Events that come meanwhile are handled.
func TestReplay_that_is_killed_is_run_again(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.start()
	const n = 150
	r.publish(0, n)
	r.await(n)
	r.refuse()
	replay := func(share int, end syscall.Signal) *process {
		t.Helper()
		p := start(t, "replay", "dlq", "replay", "--all", "--rate", "50", "--server", r.server)
		bustest.Eventually(t, patience, func() bool { return r.took() >= share })
		p.signal(end)
		<-p.exited
		return p
	}
	replay(n/3, syscall.SIGKILL)
	begin := time.Now()
	live := r.took()
	r.publish(n, 20)
	bustest.Eventually(t, patience, func() bool { return r.took() >= live+20 })
	t.Logf("20 live events were handled within %v", time.Since(begin))
	if p := replay(n*2/3, syscall.SIGINT); !strings.Contains(p.stderr.String(), "not reached, run it again to go on") {
		t.Errorf("interrupted: %s", p.stderr.String())
	}
	r.run(0, "dlq", "replay", "--all", "--wait")
	r.await(0)
	if r.took() != n+20 {
		t.Errorf("%d events taken, want %d", r.took(), n+20)
	}
}
