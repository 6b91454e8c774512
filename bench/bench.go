package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"

	"github.com/farandole/farandole/bus"
)

// bench is one run of the program.
type bench struct {
	options
	out, log io.Writer
	begun    time.Time
	dir      string // temporary: binaries and stores
	server   string // the nats-server binary
	alone    *servers
	results  results
}

// results is the JSON document.
type results struct {
	CPUs    int    `json:"cpus"`
	Go      string `json:"go"`
	Server  string `json:"nats_server"`
	Quick   bool   `json:"quick"`
	Reps    int    `json:"repetitions"`
	Elapsed string `json:"elapsed"`

	Hop     []hopSetting    `json:"hop,omitempty"`
	Publish *publishFigures `json:"publish,omitempty"`
	Latency []latencyFigure `json:"latency,omitempty"`
	Saga    []sagaFigure    `json:"saga,omitempty"`
	Codec   []costFigure    `json:"codec,omitempty"`
	Memory  *memoryFigures  `json:"memory,omitempty"`
	Outbox  []outboxFigures `json:"outbox,omitempty"`

	Policies []costFigure `json:"policies,omitempty"`

	Scale      []scaleFigure      `json:"scale,omitempty"`
	StandStill []standStillFigure `json:"stand_still,omitempty"`
	Remembered []rememberedFigure `json:"remembered,omitempty"`

	Outage *outageFigures `json:"outage,omitempty"`

	Targets []verdict `json:"targets"`
}

// newBench builds nats-server from the version that this module requires.
func newBench(ctx context.Context, o options, out, log io.Writer) (*bench, error) {
	dir, err := os.MkdirTemp("", "farandole-bench-")
	if err != nil {
		return nil, err
	}
	styled := colorprofile.NewWriter(out, os.Environ()) // plain text where no terminal is
	b := &bench{options: o, out: styled, log: log, begun: time.Now(), dir: dir, server: filepath.Join(dir, "nats-server")}
	b.results = results{CPUs: runtime.NumCPU(), Go: runtime.Version(), Reps: o.reps, Quick: o.quick}
	if err := goBuild(ctx, "", b.server, "github.com/nats-io/nats-server/v2"); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// goBuild builds a main package, seen from a module's directory ("": this one).
func goBuild(ctx context.Context, module, binary, pkg string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, pkg) //nolint:gosec // the arguments are constants
	build.Dir = module
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s (in the module's directory, with the go command): %w\n%s", pkg, err, text)
	}
	return nil
}

// measure runs the chosen sections.
func (b *bench) measure(ctx context.Context) error {
	for _, section := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"hop", b.hop},
		{"publish", b.publish},
		{"latency", b.latency},
		{"saga", b.saga},
		{"codec", b.codecs},
		{"policy", b.policies},
		{"memory", b.memory},
		{"processes", b.processes},
		{"remembered", b.remember},
		{"outbox", b.outbox},
		{"outage", b.outages},
	} {
		if !slices.Contains(b.only, section.name) {
			continue
		}
		if err := section.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", section.name, err)
		}
	}
	return nil
}

// single is one nats-server on its own with default settings, started when it
// is first needed.
func (b *bench) single(ctx context.Context) (bus.Config, error) {
	if b.alone == nil {
		s, err := b.start(ctx, "single", 1, false)
		if err != nil {
			return bus.Config{}, err
		}
		b.alone = s
	}
	return bus.Config{URL: b.alone.url}, nil
}

func (b *bench) start(ctx context.Context, name string, n int, syncAlways bool) (*servers, error) {
	return startServers(ctx, b.server, filepath.Join(b.dir, name), n, syncAlways)
}

// close stops what runs and removes what is on disk.
func (b *bench) close() error {
	var err error
	if b.alone != nil {
		err = b.alone.stop()
	}
	return errors.Join(err, os.RemoveAll(b.dir)) //nolint:gosec // made here
}

// finish judges the targets and writes the JSON file.
func (b *bench) finish() error {
	b.results.Targets = judge(&b.results)
	b.results.Elapsed = time.Since(b.begun).Round(time.Second).String()
	if err := b.printTargets(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(b.results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.json, append(text, '\n'), 0o600); err != nil { //nolint:gosec // the file that the operator names
		return err
	}
	b.say("all figures: %s (%s)", b.json, b.results.Elapsed)
	return nil
}

// say tells on stderr how far the program is.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%6.1fs  %s\n", time.Since(b.begun).Seconds(), strings.TrimSuffix(fmt.Sprintf(format, args...), "\n"))
}

// title begins a table.
func (b *bench) title(format string, args ...any) error {
	_, err := fmt.Fprintf(b.out, "\n"+format+"\n", args...)
	return err
}
