package pg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/farandole/farandole/internal/natsserver"
)

const (
	host = "127.0.0.1"
	// role is the superuser that connects.
	role = "farandole"
	// maintenance is the database that initdb makes for administration.
	maintenance = "postgres"
)

// ErrStart is returned when the server cannot be made or started; the text
// says why and holds the end of the server's log.
var ErrStart = errors.New("pg: cannot start")

// Server is a PostgreSQL server. Whoever started it ends it with
// [Server.Close]. [Server.URL] and [Server.CreateDatabase] may be called by
// several goroutines; the others by one at a time.
type Server struct {
	bin     string
	dir     string
	port    int
	owner   *owner
	guard   *guard
	process *process // nil while stopped
}

// Start makes a server and starts it; ctx bounds that, not the server's life.
// Errors match [ErrMissing] when the binaries are not there, otherwise [ErrStart].
func Start(ctx context.Context, cfg Config) (*Server, error) {
	bin, err := find(debian)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin}
	if err := s.create(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrStart, err), s.Close())
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// create makes the server's files, and the guard that removes them.
func (s *Server) create(ctx context.Context, cfg Config) error {
	ports, err := natsserver.FreePorts(host, 1)
	if err != nil {
		return err
	}
	s.port = ports[0]
	if s.owner, err = findOwner(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "farandole-pg-")
	if err != nil {
		return err
	}
	s.dir = dir
	err = s.owner.give(dir)
	if err == nil {
		s.guard, err = s.startGuard(ctx)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.initialise(ctx); err != nil {
		return err
	}
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString(cfg.text(s.port))
	return errors.Join(err, conf.Close())
}

func (s *Server) program(name string) string { return filepath.Join(s.bin, name) }

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// command is a command that runs as the server's owner.
func (s *Server) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // its callers' paths are from find
	cmd.Dir = s.dir                                // the owner may not be let into this process's
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	cmd.SysProcAttr = s.owner.attributes()
	return cmd
}

func (s *Server) start(ctx context.Context) error {
	p, err := s.launch(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w; its log ends with\n%s", ErrStart, err, s.Log())
	}
	s.process = p
	return nil
}

// URL is where clients connect to the database, as superuser; it stays the
// same across [Server.Restart].
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(role),
		Host:     fmt.Sprintf("%s:%d", host, s.port),
		Path:     database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Log is the end of what the server has logged, or why that cannot be read.
func (s *Server) Log() string {
	const most = 8000
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-most):])
}

// Stop ends all connections and the server; its data is kept. What does not
// end within two minutes is killed, which is an error. Stopping twice is fine.
func (s *Server) Stop() error { return s.end(fastShutdown) }

// Kill ends the server with SIGKILL. What was committed is there after
// [Server.Restart]. Killing one that is stopped is fine.
func (s *Server) Kill() error { return s.end(os.Kill) }

func (s *Server) end(signal os.Signal) error {
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	if err := p.end(signal); err != nil {
		return fmt.Errorf("pg: stop: %w", err)
	}
	return nil
}

// Restart stops the server if it runs, and starts it with the same port and data.
// Errors of starting match [ErrStart].
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.start(ctx)
}

// Close stops the server and removes its data. Closing twice is fine.
func (s *Server) Close() error {
	err := s.Stop()
	if s.guard != nil {
		if failed := s.guard.end(); failed != nil {
			err = errors.Join(err, fmt.Errorf("pg: remove %s: %w", s.dir, failed))
		}
		s.guard = nil
	}
	return err
}
