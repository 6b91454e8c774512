//go:build unix

package members_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

// assignment is the environment variable that makes a process of this test binary a member.
const assignment = "MEMBERS_ASSIGNMENT"

type work struct {
	URL   string
	Names event.Names
}

// A process that sleeps longer than a lifetime is gone for the others, and there
// again when it wakes. Then it does not take them for dead.
func TestMemberThatWasFrozenComesBack(t *testing.T) {
	t.Parallel()
	if text, ok := os.LookupEnv(assignment); ok {
		beMember(t, text)
		return
	}
	s := newSystem(t)
	a, b := s.member("a"), s.member("b")
	text, err := json.Marshal(work{URL: s.server.URL(), Names: s.names})
	must(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemberThatWasFrozenComesBack$", "-test.count=1")
	cmd.Env = append(os.Environ(), assignment+"="+string(text))
	out := &lines{}
	cmd.Stdout, cmd.Stderr = out, out
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	has := func(m *member, live bool) {
		t.Helper()
		bustest.Eventually(t, soon, func() bool { return m.View().Live("frozen") == live })
	}
	has(a, true)
	has(b, true)
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	has(a, false)
	has(b, false)
	balanced(t, a, b)
	must(t, cmd.Process.Signal(syscall.SIGCONT))
	has(a, true)
	has(b, true)
	must(t, stdin.Close())
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process ended with %v\n%s", err, out)
	}
	balanced(t, a, b) // it has told its end
}

func beMember(t *testing.T, text string) {
	t.Helper()
	var w work
	must(t, json.Unmarshal([]byte(text), &w))
	m := start(t, bustest.Connect(t, bus.Config{URL: w.URL, Names: w.Names}), "frozen")
	_, err := io.Copy(io.Discard, os.Stdin) // until whoever has started it says so, or is gone
	must(t, err)
	m.stop()
	must(t, <-m.done)
}
