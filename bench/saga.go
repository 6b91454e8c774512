package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/farandole/farandole/internal/human"
)

// sagaFigure is how long the demo's orders took from placed to final.
type sagaFigure struct {
	Orders      int       `json:"orders"`
	Concurrency int       `json:"concurrency"`
	P50         []float64 `json:"p50_ms"`
	P99         []float64 `json:"p99_ms"`
}

// saga runs "farandole demo" as it is shipped, without injected trouble: with
// orders one after another, and as many at once as it places by default.
func (b *bench) saga(ctx context.Context) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/farandole/farandole").Output()
	if err != nil {
		return fmt.Errorf("where is the main module: %w", err)
	}
	binary := filepath.Join(b.dir, "farandole")
	if err := goBuild(ctx, strings.TrimSpace(string(root)), binary, "./cmd/farandole"); err != nil {
		return err
	}
	figures := []sagaFigure{{Orders: b.orders / 4, Concurrency: 1}, {Orders: b.orders, Concurrency: 16}}
	for rep := range b.reps {
		for i := range figures {
			if err := figures[i].add(ctx, binary); err != nil {
				return err
			}
			b.say("saga %d/%d: %d at once: p50 %.0f ms, p99 %.0f ms", rep+1, b.reps, figures[i].Concurrency, figures[i].P50[rep], figures[i].P99[rep])
		}
	}
	b.results.Saga = figures
	if err := b.title("saga latency, the demo's orders, server in the same process, median of %d", b.reps); err != nil {
		return err
	}
	table := human.NewTable("", ">orders", ">p50 ms", ">p99 ms")
	for _, f := range figures {
		table.Row(fmt.Sprintf("%d at once", f.Concurrency), human.Number(f.Orders), fmt.Sprintf("%.0f", median(f.P50)), fmt.Sprintf("%.0f", median(f.P99)))
	}
	_, err = table.WriteTo(b.out)
	return err
}

// add runs the demo once; it fails unless the audit holds.
func (f *sagaFigure) add(ctx context.Context, binary string) error {
	var out, log bytes.Buffer
	demo := exec.CommandContext(ctx, binary, "demo", "--faults", "none", "--json", //nolint:gosec // built here
		"--orders", strconv.Itoa(f.Orders), "--concurrency", strconv.Itoa(f.Concurrency))
	demo.Stdout, demo.Stderr = &out, &log
	if err := demo.Run(); err != nil {
		return fmt.Errorf("demo: %w\n%s", err, log.Bytes())
	}
	var report struct {
		Latency struct{ P50, P99 float64 } `json:"saga_latency_ms"`
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	f.P50, f.P99 = append(f.P50, report.Latency.P50), append(f.P99, report.Latency.P99)
	return nil
}
