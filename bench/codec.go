package main

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/terminal"
)

// codecFigure is what one event costs.
type codecFigure struct {
	Name   string    `json:"name"`
	NS     []float64 `json:"ns_per_op"`
	Allocs int64     `json:"allocs_per_op"`
	Bytes  int64     `json:"bytes_per_op"`
}

const nameDecodeBinary = "decode binary"

func (b *bench) codecs(ctx context.Context) error {
	testing.Init() // else there is no test.benchtime to set
	if err := flag.Set("test.benchtime", b.codec); err != nil {
		return err
	}
	e, err := sampleEvent()
	if err != nil {
		return err
	}
	binary, err := event.Encode(e)
	if err != nil {
		return err
	}
	structured, err := event.EncodeStructured(e)
	if err != nil {
		return err
	}
	all := []struct {
		name string
		run  func() error
	}{
		{"encode binary", func() error { _, err := event.Encode(e); return err }},
		{nameDecodeBinary, func() error { _, err := event.Decode(binary.Header, binary.Data); return err }},
		{"encode structured", func() error { _, err := event.EncodeStructured(e); return err }},
		{"decode structured", func() error { _, err := event.Decode(structured.Header, structured.Data); return err }},
	}
	figures := make([]codecFigure, len(all))
	for rep := range b.reps {
		for i, codec := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := benchmark(codec.run)
			if err != nil {
				return fmt.Errorf("%s: %w", codec.name, err)
			}
			figures[i].Name, figures[i].Allocs, figures[i].Bytes = codec.name, r.AllocsPerOp(), r.AllocedBytesPerOp()
			figures[i].NS = append(figures[i].NS, float64(r.T.Nanoseconds())/float64(r.N))
		}
		b.say("codec %d/%d", rep+1, b.reps)
	}
	b.results.Codec = figures
	if err := b.title("codec: one event of %d bytes with %d headers, median of %d", hopbench.DataBytes, len(binary.Header), b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">ns", ">allocs", ">bytes")
	for _, f := range figures {
		table.Row(f.Name, terminal.Number(int(median(f.NS))), terminal.Number(f.Allocs), terminal.Number(f.Bytes))
	}
	_, err = table.WriteTo(b.out)
	return err
}

// benchmark runs f as "go test -bench" does.
func benchmark(f func() error) (testing.BenchmarkResult, error) {
	var failed error
	r := testing.Benchmark(func(b *testing.B) {
		b.Helper()
		b.ReportAllocs()
		for b.Loop() {
			if err := f(); err != nil {
				failed = err
				b.FailNow()
			}
		}
	})
	return r, failed
}

// sampleEvent is an event as a handler emits it.
func sampleEvent() (event.Event, error) {
	return hopbench.Draft(0).Seal(event.Identity{
		ID: "5e3b8c1a-7f2d-5a4e-9c6b-1d2e3f4a5b6c", Source: "/" + hopbench.ConsumerName, Time: time.Now().UTC(),
		Causation: "in-ord-00000000",
	})
}
