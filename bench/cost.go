package main

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/farandole/farandole/internal/terminal"
)

// costFigure is what one run of something small costs.
type costFigure struct {
	Name   string    `json:"name"`
	NS     []float64 `json:"ns_per_op"`
	Allocs int64     `json:"allocs_per_op"`
	Bytes  int64     `json:"bytes_per_op"`
}

// small is something whose cost is measured.
type small struct {
	name string
	run  func() error
}

// costs measures all, one after another in each repetition, and prints them.
func (b *bench) costs(ctx context.Context, section string, all []small) ([]costFigure, error) {
	testing.Init() // else there is no test.benchtime to set
	if err := flag.Set("test.benchtime", b.cost); err != nil {
		return nil, err
	}
	figures := make([]costFigure, len(all))
	for rep := range b.reps {
		for i, s := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r, err := benchmark(s.run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			figures[i].Name, figures[i].Allocs, figures[i].Bytes = s.name, r.AllocsPerOp(), r.AllocedBytesPerOp()
			figures[i].NS = append(figures[i].NS, float64(r.T.Nanoseconds())/float64(r.N))
		}
		b.say("%s %d/%d", section, rep+1, b.reps)
	}
	return figures, nil
}

// printCosts prints the medians.
func (b *bench) printCosts(figures []costFigure) error {
	table := terminal.NewTable("", ">ns", ">allocs", ">bytes")
	for _, f := range figures {
		table.Row(f.Name, terminal.Number(int(median(f.NS))), terminal.Number(f.Allocs), terminal.Number(f.Bytes))
	}
	_, err := table.WriteTo(b.out)
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
