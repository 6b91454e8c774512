package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestBothModesArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	data := "\x00\xff\r\n{\"n\": 1.0e2}"
	for _, structured := range []bool{false, true} {
		b, r := bustest.NewBus(t), newReceiver(t, secret)
		f := newFront(t, func(_ int, w http.ResponseWriter, req *http.Request) { r.ServeHTTP(w, req) })
		cfg := config(f.url)
		cfg.Structured = structured
		w := deliver(t, b, cfg)
		e := publish(t, b, event.Draft{Type: placed, Key: "Anna Müller", ContentType: "application/octet-stream", Data: []byte(data)})
		handled(t, w, 1)
		var key, about string
		var got []byte
		err := r.db.QueryRowContext(t.Context(), `SELECT key, about, data FROM taken`).Scan(&key, &about, &got)
		if err != nil || key != string(event.EventKeyOf(e)) || about != "Anna Müller" || string(got) != data {
			t.Errorf("structured %t: %s about %q with %q, %v", structured, key, about, got, err)
		}
	}
}

// Answers get lost after the receiver has taken the event, and copies of events
// are stored: each is taken once.
func TestDuplicatesAreTakenOnce(t *testing.T) {
	t.Parallel()
	b, r := bustest.NewBus(t), newReceiver(t, secret)
	f := newFront(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n%2 == 1 {
			r.ServeHTTP(httptest.NewRecorder(), req)
			panic(http.ErrAbortHandler) // taken, and nobody is told
		}
		r.ServeHTTP(w, req)
	})
	const events = 10
	for i := range events {
		d := order(fmt.Sprint("o", i))
		publish(t, b, d)
		publish(t, b, d)
	}
	cfg := config(f.url)
	cfg.Consumer.Concurrency, cfg.Consumer.Retry.MaxAttempts = 4, 50
	w := deliver(t, b, cfg)
	handled(t, w, events)
	if n := len(f.requests()); n <= events || r.count(t) != events {
		t.Errorf("%d requests, %d taken, want more than %d and %d", n, r.count(t), events, events)
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	t.Parallel()
	b, r := bustest.NewBus(t), newReceiver(t, secret)
	var first, second time.Time
	f := newFront(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		second = time.Now()
		r.ServeHTTP(w, req)
	})
	w := deliver(t, b, config(f.url))
	publish(t, b, order("o1"))
	handled(t, w, 1)
	if waited := second.Sub(first); waited < 1900*time.Millisecond || r.count(t) != 1 {
		t.Errorf("waited %v, %d taken", waited, r.count(t))
	}
}

// The receiver refuses for good; once it is mended, the replay is taken.
func TestRefusedEventIsReplayed(t *testing.T) {
	t.Parallel()
	b, wrong, mended := bustest.NewBus(t), newReceiver(t, another('x')), newReceiver(t, another('x'), secret)
	var r atomic.Pointer[receiver]
	r.Store(wrong)
	f := newFront(t, func(_ int, w http.ResponseWriter, req *http.Request) { r.Load().ServeHTTP(w, req) })
	w := deliver(t, b, config(f.url))
	publish(t, b, order("o1"))
	queue := dlq.Open(b, nil)
	bustest.Eventually(t, within, func() error {
		page, err := queue.List(t.Context(), dlq.Filter{Consumer: "partner"}, dlq.PageOptions{})
		if err == nil && (len(page.Entries) != 1 || !strings.Contains(page.Entries[0].Error, "no valid signature")) {
			err = fmt.Errorf("%+v", page.Entries)
		}
		return err
	})
	if n := len(f.requests()); n != 1 || wrong.count(t) != 0 {
		t.Fatalf("%d requests, %d taken", n, wrong.count(t))
	}
	r.Store(mended)
	summary, err := queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{Force: true}, nil)
	if err != nil || summary.Counts[dlq.Replayed] != 1 {
		t.Fatalf("%+v, %v", summary, err)
	}
	handled(t, w, 1)
	if keys := f.requests(); len(keys) != 2 || keys[0] != keys[1] || mended.count(t) != 1 {
		t.Errorf("requests %v, %d taken", keys, mended.count(t))
	}
}

// The receiver is a process that ends and comes back: nothing is lost.
func TestReceiverThatWasDown(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	file := filepath.Join(t.TempDir(), "taken.db")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	up := func(l net.Listener) (r *receiver, down func()) {
		r, err := open(t.Context(), file, secret)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, l, r) }()
		return r, sync.OnceFunc(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if err := r.db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	_, down := up(l)
	cfg := config("http://" + address)
	cfg.Consumer.Retry.MaxAttempts = 100
	w := deliver(t, b, cfg)
	publish(t, b, order("before"))
	handled(t, w, 1)
	down()
	for i := range 5 {
		publish(t, b, order(fmt.Sprint("while", i)))
	}
	bustest.Eventually(t, within, func() bool { return w.Stats().Retried >= 5 })
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	r, down := up(l)
	defer down()
	handled(t, w, 6)
	if n := r.count(t); n != 6 {
		t.Errorf("%d taken, want 6", n)
	}
}

// The webhook's process is killed after the receiver has taken an event and
// before it knows: the next process delivers it again, it is taken once.
func TestKilledBetweenDeliveryAndAcknowledgement(t *testing.T) {
	t.Parallel()
	b, r := bustest.NewBus(t), newReceiver(t, secret)
	var first *exec.Cmd
	started := make(chan struct{})
	f := newFront(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n > 1 {
			r.ServeHTTP(w, req)
			return
		}
		r.ServeHTTP(httptest.NewRecorder(), req)
		<-started
		if err := first.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-req.Context().Done() // never answered
	})
	publish(t, b, order("o1"))
	process := func() *exec.Cmd {
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env = append(os.Environ(), childServer+"="+bustest.Server(t).URL(), childPrefix+"="+b.Names().Prefix, childURL+"="+f.url)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first = process()
	close(started)
	if err := first.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	if r.count(t) != 1 {
		t.Fatalf("%d taken", r.count(t))
	}
	second := process()
	bustest.Eventually(t, within, func() bool { return len(f.requests()) >= 2 })
	if err := second.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
	if keys := f.requests(); keys[0] != keys[1] || r.count(t) != 1 {
		t.Errorf("requests %v, %d taken", keys, r.count(t))
	}
}

// While the file cannot be written, the sender is asked to try again.
func TestReceiverThatCannotWrite(t *testing.T) {
	t.Parallel()
	b, r := bustest.NewBus(t), newReceiver(t, secret)
	if _, err := r.db.ExecContext(t.Context(), `ALTER TABLE taken RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	f := newFront(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n == 2 {
			if _, err := r.db.ExecContext(req.Context(), `ALTER TABLE gone RENAME TO taken`); err != nil {
				t.Error(err)
			}
		}
		r.ServeHTTP(w, req)
	})
	w := deliver(t, b, config(f.url))
	publish(t, b, order("o1"))
	handled(t, w, 1)
	if r.count(t) != 1 || len(f.requests()) != 2 {
		t.Errorf("%d taken after %d requests", r.count(t), len(f.requests()))
	}
}
