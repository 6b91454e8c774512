package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/farandole/farandole/internal/terminal"
)

// sagaFigure is how fast the demo's orders ended.
type sagaFigure struct {
	Database    string    `json:"database"`
	Orders      int       `json:"orders"`
	Concurrency int       `json:"concurrency"`
	PerSecond   []float64 `json:"sagas_per_second"`
	P50         []float64 `json:"p50_ms"` // from placed to final
	P99         []float64 `json:"p99_ms"`
}

// manyAtOnce is how many orders the demo places at once by default.
const manyAtOnce = 16

// saga runs "farandole demo" as it is shipped, without injected trouble, on each
// database: with orders one after another, and as many at once as it places by
// default. SQLite is where the demo puts it.
func (b *bench) saga(ctx context.Context) (err error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/farandole/farandole").Output()
	if err != nil {
		return fmt.Errorf("where is the main module: %w", err)
	}
	binary := filepath.Join(b.dir, "farandole")
	if err := goBuild(ctx, strings.TrimSpace(string(root)), binary, "./cmd/farandole"); err != nil {
		return err
	}
	engines, stop, err := b.engines(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var figures []sagaFigure
	for _, e := range engines {
		figures = append(figures, sagaFigure{Database: e.name, Orders: max(b.orders/50, 10), Concurrency: 1},
			sagaFigure{Database: e.name, Orders: b.orders, Concurrency: manyAtOnce})
	}
	for rep := range b.reps {
		for i := range figures {
			f := &figures[i]
			if err := f.add(ctx, binary, engines[i/2]); err != nil {
				return err
			}
			b.say("saga %d/%d: %s, %d at once: %.0f/s, p50 %.0f ms, p99 %.0f ms", rep+1, b.reps, f.Database, f.Concurrency,
				f.PerSecond[rep], f.P50[rep], f.P99[rep])
		}
	}
	b.results.Saga = figures
	return b.printSagas()
}

func (b *bench) printSagas() error {
	if err := b.title("sagas, the demo's orders from placed to final, server in the same process, median of %d", b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", "", ">orders", ">sagas/s", ">p50 ms", ">p99 ms")
	for _, f := range b.results.Saga {
		table.Row(f.Database, fmt.Sprintf("%d at once", f.Concurrency), terminal.Number(f.Orders), fmt.Sprintf("%.0f", median(f.PerSecond)),
			fmt.Sprintf("%.0f", median(f.P50)), fmt.Sprintf("%.0f", median(f.P99)))
	}
	_, err := table.WriteTo(b.out)
	return err
}

// add runs the demo once; it fails unless the audit holds.
func (f *sagaFigure) add(ctx context.Context, binary string, e engine) error {
	args := []string{
		"demo", "--faults", "none", "--json", "--orders", strconv.Itoa(f.Orders), "--concurrency", strconv.Itoa(f.Concurrency),
	}
	if e.name == namePostgres {
		target, err := e.make(ctx)
		if err != nil {
			return err
		}
		args = append(args, "--database-url", target)
	}
	var out, log bytes.Buffer
	demo := exec.CommandContext(ctx, binary, args...) //nolint:gosec // built here
	demo.Stdout, demo.Stderr = &out, &log
	if err := demo.Run(); err != nil {
		return fmt.Errorf("demo: %w\n%s", err, log.Bytes())
	}
	var report struct {
		PerSecond float64                    `json:"sagas_per_second"`
		Latency   struct{ P50, P99 float64 } `json:"saga_latency_ms"`
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	f.PerSecond = append(f.PerSecond, report.PerSecond)
	f.P50, f.P99 = append(f.P50, report.Latency.P50), append(f.P99, report.Latency.P99)
	return nil
}
