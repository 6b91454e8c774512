package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/require"
)

// binary is the program under test.
var binary string

// TestMain runs four tests at once, for each is many processes, unless -parallel,
// which is parsed after this, says otherwise.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
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
	binary = filepath.Join(dir, "farandole")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		// SQLite is C turned into Go, and many times slower when each access to
		// memory is watched; its own threading is not what is tested here.
		args = append(args, "-race", "-gcflags=modernc.org/sqlite/lib=-race=false")
	}
	build := exec.CommandContext(context.Background(), "go", append(args, "../cmd/farandole")...)
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	code = b.tests.Run()
	if long() {
		printCounted()
	}
	return code, nil
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
