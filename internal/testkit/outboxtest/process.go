package outboxtest

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

// relayOrder is what the environment variable of this name has a process do: be
// a relay.
const relayOrder = "OUTBOXTEST_RELAY"

// order is what that relay has to know.
type order struct {
	Target, URL, Prefix string
	Batch               int
	Lease               time.Duration
}

// process is a relay in a process of its own.
type process struct {
	*rig
	cmd   *exec.Cmd
	stdin io.Closer
	log   lines
}

// relayProcess starts the test binary as a relay of the rig's outbox. It ends
// when it is killed, at the end of the test, or with this process.
func (r *rig) relayProcess(o order) *process {
	r.Helper()
	o.Target, o.Prefix = r.target, r.bus.Names().Prefix
	if o.URL == "" {
		o.URL = r.server.URL()
	}
	text, err := json.Marshal(o)
	r.ok(err)
	test, _, _ := strings.Cut(r.Name(), "/")
	p := &process{rig: r, cmd: exec.CommandContext(context.WithoutCancel(r.Context()), os.Args[0], "-test.run=^"+test+"$")} //nolint:gosec // this program
	p.cmd.Env = append(os.Environ(), relayOrder+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
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
func (p *process) kill() {
	p.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil {
		p.Error(err)
	}
	_ = p.cmd.Wait() //nolint:errcheck // it was killed, which is an error
}

// asRelay is what a process does that was told to be a relay; false in any other.
func asRelay(t *testing.T, f Factory) bool {
	t.Helper()
	text, ok := os.LookupEnv(relayOrder)
	if !ok {
		return false
	}
	go func() { // whoever has started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an end is an end
		os.Exit(1)
	}()
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.run(t.Context(), f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

func (o order) run(ctx context.Context, f Factory) error {
	db, err := f.Open(o.Target)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // the process ends
	b, err := bus.Connect(ctx, bus.Config{URL: o.URL, Names: event.Names{Prefix: o.Prefix}, Wait: soon})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // the process ends
	box, err := outbox.New(db, outbox.Config{Dialect: f.Dialect, Names: b.Names()})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(box, b, outbox.RelayConfig{
		Batch: o.Batch, Lease: o.Lease, Logger: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}
