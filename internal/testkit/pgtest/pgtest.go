// Package pgtest gives tests a real PostgreSQL server.
//
// Most tests want [Database]: an empty database of their own on a server that
// the tests of a binary share. It is started by the first test that asks and
// ends with the binary, without a word in TestMain. A test that has to stop
// its server or wants other settings starts its own with [Start].
//
// Where Postgres is not installed such a test skips, or fails if
// FARANDOLE_REQUIRE lists postgres (package require).
package pgtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/farandole/farandole/internal/testkit/pg"
	"github.com/farandole/farandole/internal/testkit/require"
)

// patience bounds making and dropping a database.
const patience = time.Minute

// Server is a server for tests.
type Server struct{ pg *pg.Server }

// Start starts a server for this test alone; it is stopped and removed at the
// end. When the test has failed the end of the server's log is shown.
func Start(tb testing.TB, cfg pg.Config) *Server {
	tb.Helper()
	s := start(tb, cfg)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the log of Postgres ends with\n%s", s.pg.Log())
		}
		if err := s.pg.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func start(tb testing.TB, cfg pg.Config) *Server {
	tb.Helper()
	s, err := pg.Start(tb.Context(), cfg)
	if errors.Is(err, pg.ErrMissing) {
		require.Missing(tb, require.Postgres, "Postgres is not installed: NOT RUN (Debian: postgresql)")
	}
	if err != nil {
		tb.Fatal(err)
	}
	return &Server{s}
}

// shared is the test binary's one server. Nobody closes it: its guard does
// when the binary ends.
//
//nolint:gochecknoglobals // it is made by the first test that asks and ends after the last
var shared struct {
	sync.Mutex
	server *Server
}

// Database returns the URL of an empty database on the server that the tests
// of this binary share. It is dropped at the end of the test, with the
// connections and replication slots that are left.
func Database(tb testing.TB) string {
	tb.Helper()
	s := sharedServer(tb)
	name := s.create(tb)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		if err := s.pg.DropDatabase(ctx, name); err != nil {
			tb.Error(err)
		}
	})
	return s.pg.URL(name)
}

func sharedServer(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = start(tb, pg.Config{})
	}
	return shared.server
}

// Database returns the URL of an empty database on this server, which goes
// with the server.
func (s *Server) Database(tb testing.TB) string {
	tb.Helper()
	return s.pg.URL(s.create(tb))
}

func (s *Server) create(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	name, err := s.pg.CreateDatabase(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return name
}

// Stop ends the server's connections and stops it; its data is kept. Stopping
// twice is fine.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.pg.Stop(); err != nil {
		tb.Fatal(err)
	}
}

// Kill ends the server with SIGKILL; what was committed is there after
// [Server.Restart].
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	if err := s.pg.Kill(); err != nil {
		tb.Fatal(err)
	}
}

// Restart stops the server if it runs, and starts it with the same port and data.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	if err := s.pg.Restart(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}
