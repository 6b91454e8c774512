package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// rememberedFigure is what it costs to remember events.
type rememberedFigure struct {
	Name   string `json:"name"`
	Events int    `json:"events"`
	// ServerHeap is the server's heap after them, ConsumerHeap by how much the
	// consumer's has grown.
	ServerHeap   int64 `json:"server_heap_bytes"`
	ConsumerHeap int64 `json:"consumer_heap_bytes,omitempty"`
	// First is how long a new process takes from its start until it has handled an
	// event, with none remembered and with all of them.
	First     time.Duration `json:"first_event_none_ns,omitempty"`
	FirstFull time.Duration `json:"first_event_all_ns,omitempty"`
}

// remember has each ledger remember many events, on a server of its own.
func (b *bench) remember(ctx context.Context) error {
	for _, name := range []string{nameRaw, nameKV, namePartition} {
		f, err := b.remembered(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.results.Remembered = append(b.results.Remembered, f)
		b.say("remembered: %s: server %s, consumer %s", name, terminal.Size(int(f.ServerHeap)), terminal.Size(int(f.ConsumerHeap)))
	}
	if err := b.title("what %s remembered events cost, one replica, file, once", terminal.Number(b.remembers)); err != nil {
		return err
	}
	table := terminal.NewTable("", ">server, bytes an event", ">consumer, bytes an event", ">first event after a start", ">with all remembered")
	raw := b.results.Remembered[0]
	for _, f := range b.results.Remembered[1:] {
		each := func(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/float64(f.Events)) }
		table.Row(f.Name, each(f.ServerHeap-raw.ServerHeap), each(f.ConsumerHeap), f.First.Round(time.Millisecond).String(), f.FirstFull.Round(time.Millisecond).String())
	}
	_, err := table.WriteTo(b.out)
	return err
}

// kinds are the ledgers of the variants that have one.
func kindOf(name string) ledger.Kind {
	if name == nameKV {
		return ledger.KV
	}
	return ledger.Partition
}

func (b *bench) remembered(ctx context.Context, name string) (f rememberedFigure, err error) {
	f = rememberedFigure{Name: name, Events: b.remembers}
	servers, err := b.start(ctx, "remembered-"+name, 1, false)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, servers.stop()) }()
	s, err := hopbench.Open(ctx, bus.Config{URL: servers.url}, hopbench.Prefix(), 1)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	w := work{events: b.remembers, ledger: kindOf(name), handlers: hopbench.DefaultConcurrency}
	if name != nameRaw {
		if f.First, err = b.first(ctx, servers.url, s, w, b.remembers); err != nil {
			return f, err
		}
	}
	if err := s.Publish(ctx, 0, b.remembers); err != nil {
		return f, err
	}
	if name == nameRaw {
		err = raw(ctx, s, b.remembers)
	} else {
		var child *worker
		if child, err = b.startWorker(ctx, servers.url, s, w); err != nil {
			return f, err
		}
		var last progress
		last, err = child.follow(func(progress) error { return nil })
		f.ConsumerHeap = last.HeapBytes
	}
	if err != nil {
		return f, err
	}
	if f.ServerHeap, err = servers.heap(ctx, b.settle); err != nil || name == nameRaw {
		return f, err
	}
	f.FirstFull, err = b.first(ctx, servers.url, s, w, b.remembers+1)
	return f, err
}

// first is how long a new process takes until it has handled an event.
func (b *bench) first(ctx context.Context, url string, s *hopbench.Stage, w work, number int) (took time.Duration, err error) {
	w.events = 0
	if err := s.Publish(ctx, number, 1); err != nil {
		return 0, err
	}
	seen, forget, err := nextConsumer(ctx, s)
	if err != nil {
		return 0, err
	}
	defer forget()
	begun := time.Now()
	child, err := b.startWorker(ctx, url, s, w)
	if err != nil {
		return 0, err
	}
	go child.drain()
	defer func() { err = errors.Join(err, child.end(syscall.SIGTERM)) }()
	select {
	case at := <-seen:
		return at.Sub(begun), nil
	case <-time.After(time.Minute):
		return 0, fmt.Errorf("%w: a new process handled nothing within a minute", hopbench.ErrStalled)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// heapInUse is in what a Go program tells of its heap.
var heapInUse = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// heap is the smallest heap of the first server over some time: what it holds of its
// files it lets go after a while.
func (s *servers) heap(ctx context.Context, settle time.Duration) (smallest int64, err error) {
	for begun := time.Now(); ; {
		now, err := s.heapNow(ctx)
		if err != nil {
			return 0, err
		}
		if smallest == 0 || now < smallest {
			smallest = now
		}
		if time.Since(begun) > settle {
			return smallest, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settle/5 + time.Millisecond):
		}
	}
}

func (s *servers) heapNow(ctx context.Context) (int64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.profile+"/debug/pprof/heap?gc=1&debug=1", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // it is read to its end
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	found := heapInUse.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("no heap in what the server tells: %s", answer.Status)
	}
	return strconv.ParseInt(string(found[1]), 10, 64)
}
