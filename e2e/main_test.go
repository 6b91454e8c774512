package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/require"
)

// binary is the program under test.
var binary string

// TestMain runs eight tests at once, for each waits most of the time, for leases and for
// processes; four with the race detector, with which they compute. -parallel, which is
// parsed after this, may say otherwise.
func TestMain(m *testing.M) {
	atOnce := "8"
	if raceEnabled {
		atOnce = "4"
	}
	// No process lives for long. An eighth of its time would go into collecting garbage, again
	// and again while its heap grows.
	err := os.Setenv("GOGC", "400")
	if err = errors.Join(err, flag.Set("test.parallel", atOnce)); err != nil {
		panic(err)
	}
	bustest.Main(built{m})
}

// built runs tests after the program is built.
type built struct{ tests *testing.M }

// Run builds the program, runs the tests and removes the program.
func (b built) Run() int {
	code, err := b.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	return code
}

func (b built) run() (code int, err error) {
	dir, err := os.MkdirTemp("", "farandole-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if binary, err = build(context.Background(), dir, "../cmd/farandole"); err != nil {
		return 1, err
	}
	code = b.tests.Run()
	if long() {
		printCounted()
	}
	return code, nil
}

// build builds a program and puts it into a directory. What "go run" has linked is kept in
// the build cache, as what "go build" links is not.
func build(ctx context.Context, dir, program string) (file string, err error) {
	file = filepath.Join(dir, filepath.Base(program))
	args := slices.Concat([]string{"run", "-exec", "cp"}, buildFlags(), []string{program, file})
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return file, nil
}

// buildFlags are those that this test binary was built with.
func buildFlags() []string {
	if !raceEnabled {
		return nil
	}
	// SQLite is C turned into Go, and many times slower when each access to
	// memory is watched; its own threading is not what is tested here.
	return []string{"-race", "-gcflags=modernc.org/sqlite/lib=-race=false"}
}

// needDocker ends the test where there is no Docker.
func needDocker(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput()
	if err == nil {
		return
	}
	require.Missing(t, require.Docker, fmt.Sprintf("needs Docker: docker version: %v: %s", err, strings.TrimSpace(string(out))))
}

// long says that there is time for the long variants of tests.
func long() bool { return os.Getenv("FARANDOLE_LONG") == "1" }
