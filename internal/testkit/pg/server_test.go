package pg_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/require"
)

const patience = time.Minute

// victim is the variable that makes this binary a program with a server.
const victim = "FARANDOLE_PG_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victim) != "" {
		if err := beVictim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// beVictim starts a server, tells where it is, and waits to be killed.
func beVictim() error {
	s, err := pg.Start(context.Background(), pg.Config{})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, s.URL("postgres")); err != nil {
		return err
	}
	_, err = bufio.NewReader(os.Stdin).ReadByte() // nothing comes
	return err
}

func needPostgres(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, pg.ErrMissing) {
		require.Missing(t, require.Postgres, err.Error()+": NOT RUN")
	}
}

func TestKilledProgramLeavesNothing(t *testing.T) {
	t.Parallel()
	tmp := openTempDir(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victim+"=1", "TMPDIR="+tmp)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close() //nolint:errcheck // it is only held open
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		err = errors.Join(err, cmd.Wait())
		if strings.HasPrefix(stderr.String(), pg.ErrMissing.Error()) {
			needPostgres(t, pg.ErrMissing)
		}
		t.Fatalf("%v: %s", err, stderr.String())
	}
	url = strings.TrimSpace(url)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if len(files(t, tmp)) == 0 {
		t.Fatalf("the server keeps its files elsewhere than in %s", tmp)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	bustest.Eventually(t, patience, func() error {
		if left := files(t, tmp); len(left) > 0 {
			return fmt.Errorf("files are left: %v", left)
		}
		return nil
	})
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("its connection still works")
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Log(err) // nobody is left to say goodbye to
	}
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		t.Errorf("the server still takes connections: %v", conn.Close(t.Context()))
	}
}

func TestStartTellsWhy(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	_, err := pg.Start(t.Context(), pg.Config{Settings: map[string]string{"no_such_setting": "1"}})
	needPostgres(t, err)
	if !errors.Is(err, pg.ErrStart) || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error %v, want ErrStart with what the server says", err)
	}
	if left := files(t, tmp); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestStartCanBeCancelled(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pg.Start(ctx, pg.Config{})
	needPostgres(t, err)
	if !errors.Is(err, pg.ErrStart) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want ErrStart and Canceled", err)
	}
	if left := files(t, tmp); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestCloseTwice(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	s, err := pg.Start(t.Context(), pg.Config{})
	needPostgres(t, err)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close(), s.Kill()); err != nil {
		t.Error(err)
	}
	if left := files(t, tmp); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// The second server of a version starts from a copy of what the first one's initdb
// made.
func TestServersStartFromOneCopy(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	for range 2 {
		s, err := pg.Start(t.Context(), pg.Config{})
		needPostgres(t, err)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateDatabase(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if kept := files(t, filepath.Join(cache, "farandole")); len(kept) != 1 || !strings.Contains(kept[0], "postgres-") {
			t.Errorf("kept are %v, want one copy", kept)
		}
	}
}

// openTempDir makes a directory for a server that runs as somebody else.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "farandole-pg-test-") //nolint:usetesting // what is above the other's is closed to them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// files are the files in dir.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
