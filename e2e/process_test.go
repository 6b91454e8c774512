package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/natsserver"
)

// patience bounds whatever has to happen. It is long for busy machines; a test
// that works never waits for it.
const patience = 3 * time.Minute

// transport of all requests of these tests; no connection outlives its request,
// for the servers come and go.
var transport = &http.Transport{DisableKeepAlives: true}

var httpClient = &http.Client{Transport: transport, Timeout: 10 * time.Second}

// process is a running farandole.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	stderr *output
	exited chan struct{} // closed when it has been waited for
	result error         // of waiting; to be read after exited
}

// output collects what a process writes, for reading while it does.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// environment is this process's without what would change the program's behaviour.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !slices.ContainsFunc([]string{"NATS_", "FARANDOLE_", "DATABASE_URL=", "NO_COLOR="}, func(name string) bool { return strings.HasPrefix(v, name) }) {
			env = append(env, v)
		}
	}
	return env
}

// start starts farandole; it is killed at the end of the test if it still runs.
// What it wrote to stderr is shown when the test has failed.
func start(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return startProgram(t, binary, name, args...)
}

// startProgram starts another program like farandole.
func startProgram(t testing.TB, program, name string, args ...string) *process {
	t.Helper()
	stderr := &output{}
	p := launchProgram(t, program, name, stderr, args...)
	p.stderr = stderr
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s (%s) ended: %v; it wrote:\n%s", name, strings.Join(args, " "), p.result, tail(p.stderr.String(), 8000))
		}
	})
	return p
}

// launch starts farandole; whoever calls it ends it.
func launch(t testing.TB, name string, stderr io.Writer, args ...string) *process {
	t.Helper()
	return launchProgram(t, binary, name, stderr, args...)
}

func launchProgram(t testing.TB, program, name string, stderr io.Writer, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.CommandContext(t.Context(), program, args...), exited: make(chan struct{})}
	p.cmd.Env = environment()
	p.cmd.Stderr = stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.exited)
		p.result = p.cmd.Wait()
	}()
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// signal sends a signal to the process, by its id.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("signal %s: %v", p.name, err)
	}
}

// kill ends the process without giving it a chance, and waits for its end.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// stopCleanly asks the process to end and says how long it took; any exit code
// but 0 fails the test.
func (p *process) stopCleanly() time.Duration {
	p.t.Helper()
	begin := time.Now()
	p.signal(syscall.SIGTERM) // a second one would kill it
	p.endsCleanly()
	return time.Since(begin)
}

// endsCleanly waits for the end of the process, with exit code 0.
func (p *process) endsCleanly() {
	p.t.Helper()
	select {
	case <-p.exited:
		if p.result != nil {
			p.t.Fatalf("%s: %v after SIGTERM, want exit code 0", p.name, p.result)
		}
	case <-time.After(patience):
		p.t.Fatalf("%s does not stop", p.name)
	}
}

// ready waits until the process answers at /readyz. It fails at once when the
// process ends instead.
func (p *process) ready(url string) {
	p.t.Helper()
	bustest.Eventually(p.t, patience, func() error {
		select {
		case <-p.exited:
			p.t.Fatalf("%s has ended: %v", p.name, p.result)
		default:
		}
		_, err := get(p.t.Context(), url+"/readyz")
		return err
	})
}

// get returns the body of a 200.
func get(ctx context.Context, url string) ([]byte, error) {
	return do(ctx, http.MethodGet, url, nil, nil)
}

// do sends a request and returns the body of a 2xx; anything else is an error.
func do(ctx context.Context, method, url string, header http.Header, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, &statusError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, url, resp.Status, tail(answer.String(), 300))}
	}
	return answer.Bytes(), nil
}

// statusError is an answer other than 2xx.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// result is how a command ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs farandole to its end.
func run(t testing.TB, args ...string) result {
	t.Helper()
	return runWith(t, nil, args...)
}

// runWith runs farandole with more environment variables.
func runWith(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(environment(), env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("farandole %s: %v", strings.Join(args, " "), err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// given are the ports that freePort has returned.
var given sync.Map

// freePort returns a port nobody listens on, for a process that may be started
// on it again: no other test gets it while that process is dead.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		ports, err := natsserver.FreePorts("127.0.0.1", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, taken := given.LoadOrStore(ports[0], true); !taken {
			return ports[0]
		}
	}
}

func localURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
