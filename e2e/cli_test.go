package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bustest"
)

// letters is what "dlq list --json" prints.
type letters struct {
	Entries []struct {
		ID       string
		Consumer string
		Reason   string
		Key      string
	}
	Matching, Total int
}

// listLetters decodes the output of "dlq list --json".
func listLetters(t testing.TB, stdout string) letters {
	t.Helper()
	var l letters
	decodeOnly(t, stdout, &l)
	return l
}

// decodeOnly decodes stdout, which must be one JSON document and nothing else.
func decodeOnly(t testing.TB, stdout string, to any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(stdout))
	if err := d.Decode(to); err != nil {
		t.Fatalf("stdout is not JSON: %v: %s", err, tail(stdout, 500))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one JSON document on stdout: %s", tail(stdout, 500))
	}
}

// deadLetters runs a payment service that has n dead letters, and returns the
// server's URL. They are messages that are no events.
func deadLetters(t *testing.T, n int) string {
	t.Helper()
	server := bustest.StartServer(t, bustest.ServerConfig{})
	port := freePort(t)
	p := start(t, "payment", "serve", "payment", "gateway", "--server", server.URL(), "--http", fmt.Sprintf("127.0.0.1:%d", port))
	p.ready(localURL(port))
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(n)) // or it gives up on a busy machine
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := js.PublishAsync(fmt.Sprintf("events.order.placed.v1.bad-%d", i), []byte("no event")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("the messages are not acknowledged")
	}
	stream, err := js.Stream(ctx, "DLQ")
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, 3*patience, func() error {
		info, err := stream.Info(t.Context())
		if err == nil && info.State.Msgs != uint64(n) {
			err = fmt.Errorf("%d dead letters, want %d", info.State.Msgs, n)
		}
		return err
	})
	p.stopCleanly()
	return server.URL()
}

// Listing ten thousand letters starts at once, says what it left out, reaches
// all, and does not fill the pipe of a reader that has seen enough.
func TestList_many_dead_letters(t *testing.T) {
	t.Parallel()
	n := 1_000
	if long() {
		n = 10_000
	}
	server := deadLetters(t, n)

	begin := time.Now()
	r := run(t, "--server", server, "dlq", "list")
	t.Logf("dlq list of %d letters: %s", n, time.Since(begin).Round(time.Millisecond))
	if lines := strings.Count(r.stdout, "\n"); r.code != 0 || lines != 51 {
		t.Errorf("exit code %d, %d lines, want a heading and 50 letters: %s", r.code, lines, r.stderr)
	}
	if !strings.Contains(r.stderr, "50 of ") {
		t.Errorf("stderr does not say that there are more: %q", r.stderr)
	}
	for _, c := range []struct {
		args    []string
		entries int
	}{
		{nil, 50},
		{[]string{"--limit", "7"}, 7},
		{[]string{"--all"}, n},
		{[]string{"--all", "--reason", "exhausted"}, 0},
	} {
		r := run(t, append([]string{"--server", server, "dlq", "list", "--json"}, c.args...)...)
		if r.code != 0 {
			t.Fatalf("list %v: exit code %d: %s", c.args, r.code, r.stderr)
		}
		l := listLetters(t, r.stdout)
		if len(l.Entries) != c.entries || l.Total != n {
			t.Errorf("list %v: %d entries, total %d; want %d of %d", c.args, len(l.Entries), l.Total, c.entries, n)
		}
	}

	for _, command := range []string{"dlq list --all", "dlq list --all --json", "dlq export"} {
		endsQuietly(t, server, command)
	}
}

// endsQuietly runs a command for a reader that has soon seen enough: no
// complaint, and not a failure.
func endsQuietly(t *testing.T, server, command string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	script := fmt.Sprintf(`"$0" --server "$1" %s | head -c 100 >/dev/null; echo "${PIPESTATUS[0]}"`, command)
	cmd := exec.CommandContext(ctx, "bash", "-c", script, binary, server)
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "0" || strings.Contains(stderr.String(), "pipe") {
		t.Errorf("%s | head: exit code %s, %v, stderr %q; want a quiet 0", command, bytes.TrimSpace(out), err, stderr.String())
	}
}

// stdout holds JSON and nothing else; without a terminal nobody gets colours or
// questions; exit codes tell what happened.
func TestOutput_for_programs(t *testing.T) {
	t.Parallel()
	server := deadLetters(t, 3)
	list := listLetters(t, run(t, "--server", server, "dlq", "list", "--json").stdout)
	if len(list.Entries) != 3 {
		t.Fatalf("entries: %+v", list)
	}
	id := list.Entries[0].ID
	for _, c := range []struct {
		args  []string
		code  int
		lines bool // JSON lines, not one document
	}{
		{args: []string{"dlq", "list", "--json"}},
		{args: []string{"dlq", "show", id, "--json"}},
		{args: []string{"dlq", "stats", "--json"}},
		{args: []string{"dlq", "export"}, lines: true},
		{args: []string{"dlq", "replay", "--all", "--dry-run", "--json"}, lines: true},
		{args: []string{"topology", "plan", "--json"}},
		{args: []string{"version", "--json"}},
		// 1: it failed
		{args: []string{"dlq", "show", "payment.nothing", "--json"}, code: 1},
		{args: []string{"--server", "nats://127.0.0.1:1", "--wait", "100ms", "dlq", "list", "--json"}, code: 1},
		// 2: it was not understood, or wants an answer that nobody can give
		{args: []string{"dlq", "list", "--no-such-flag"}, code: 2},
		{args: []string{"dlq", "list", "--limit", "0", "--json"}, code: 2},
		{args: []string{"no-such-command"}, code: 2},
		{args: []string{"dlq", "discard", id}, code: 2},
	} {
		args := append([]string{"--server", server}, c.args...)
		for _, env := range [][]string{nil, {"NO_COLOR=1"}, {"TERM=xterm-256color", "CLICOLOR=1"}} {
			r := runWith(t, env, args...)
			if r.code != c.code {
				t.Errorf("%v: exit code %d, want %d: %s", c.args, r.code, c.code, r.stderr)
				continue
			}
			if strings.ContainsAny(r.stdout+r.stderr, "\x1b\r") {
				t.Errorf("%v: control codes without a terminal: %q", c.args, r.stdout+r.stderr)
			}
			switch {
			case c.code != 0:
				if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
					t.Errorf("%v: stdout %q, stderr %q; want one line on stderr", c.args, r.stdout, r.stderr)
				}
			case c.lines:
				if strings.Count(r.stdout, "\n") != 3 {
					t.Errorf("%v: want three lines: %q", c.args, r.stdout)
				}
				for line := range strings.Lines(r.stdout) {
					decodeOnly(t, line, new(map[string]any))
				}
			default:
				decodeOnly(t, r.stdout, new(map[string]any))
			}
		}
	}
	if after := listLetters(t, run(t, "--server", server, "dlq", "list", "--json").stdout); after.Total != 3 {
		t.Errorf("looking has changed something: %d letters, want 3", after.Total)
	}
}
