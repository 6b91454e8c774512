package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// interruptible is a demo that a test interrupts.
type interruptible struct {
	*process
	stdout output
	temp   string // where it keeps what is temporary
}

func startDemo(t *testing.T, args ...string) *interruptible {
	t.Helper()
	p := &interruptible{temp: t.TempDir(), process: &process{t: t, name: "demo", stderr: &output{}, exited: make(chan struct{})}}
	p.cmd = exec.CommandContext(t.Context(), binary, append([]string{"demo"}, args...)...)
	p.cmd.Env = append(environment(), "TMPDIR="+p.temp)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		p.result = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// awaits waits until the demo has written some text.
func (p *interruptible) awaits(text string) string {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		written := p.stderr.String()
		if strings.Contains(written, text) {
			return written
		}
		select {
		case <-p.exited:
			p.t.Fatalf("the demo ended (%v) before it wrote %q:\n%s", p.result, text, p.stderr)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the demo does not write %q:\n%s", text, written)
		}
	}
}

// interrupt is Ctrl-C. The demo ends with 130, says so, and leaves nothing behind.
func (p *interruptible) interrupt() {
	p.t.Helper()
	p.signal(syscall.SIGINT)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("the demo does not end:\n%s", p.stderr)
	}
	var exit *exec.ExitError
	if !errors.As(p.result, &exit) || exit.ExitCode() != 130 || !strings.HasSuffix(p.stderr.String(), "interrupted: the demo has stopped, and left nothing behind\n") {
		p.t.Errorf("%v:\n%s", p.result, p.stderr)
	}
	left, err := os.ReadDir(p.temp)
	if err != nil || len(left) > 0 {
		p.t.Errorf("%v is left behind, %v", left, err)
	}
}

func TestInterruptedDemoEndsAtAnyMoment(t *testing.T) {
	t.Parallel()
	for faults, moments := range map[string][]string{
		"storm":  {"This places", "placing:", "crash: payment killed"},
		"outage": {"gateway down", "the breaker of the gateway opens"}, // not each storm opens it
		"some":   {"settling:", "dead letters; faults mended", "replaying:", "auditing:"},
	} {
		for _, moment := range moments {
			t.Run(moment, func(t *testing.T) {
				t.Parallel()
				p := startDemo(t, "--orders", "40", "--faults", faults, "--keep-open") // it does not end by itself before
				p.awaits(moment)
				p.interrupt()
			})
		}
	}
}

// The system stays up, and the commands that the demo prints work.
func TestDemoStaysUp(t *testing.T) {
	t.Parallel()
	p := startDemo(t, "--orders", "20", "--keep-open")
	found := regexp.MustCompile(`NATS_URL=(\S+)`).FindStringSubmatch(p.awaits("farandole consumer list"))
	if len(found) == 0 {
		t.Fatal(p.stderr)
	}
	nats := []string{"NATS_URL=" + found[1]}
	r := runWith(t, nats, "publish", "order.placed.v1", "nobodys-order", "--data", "{}")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(r.stdout, "nobodys-order"); {
		if r = runWith(t, nats, "dlq", "list"); r.code != 0 || time.Now().After(deadline) {
			t.Fatalf("%+v", r)
		}
	}
	if r = runWith(t, nats, "tail", "--type", "order.confirmed.v1", "--from-start", "--limit", "5"); r.code != 0 || strings.Count(r.stdout, "\n") != 5 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(p.stdout.String(), "audit holds") {
		t.Errorf("stdout %s", &p.stdout)
	}
	p.interrupt()
}
