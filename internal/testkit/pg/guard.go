package pg

import (
	"context"
	"io"
	"os/exec"
)

// guarding waits until its input ends, which the end of this process, however
// it comes, sees to. Then it stops what runs in the directory and removes it.
// Signals that a terminal sends to all processes do not keep it from that.
const guarding = `trap '' HUP INT QUIT TERM; cat; "$0" stop --mode=immediate --pgdata="$1/data"; cd /; rm -rf "$1"`

// guard is the process that ends a server and its files with this process.
type guard struct {
	cmd   *exec.Cmd
	input io.Closer
}

func (s *Server) startGuard(ctx context.Context) (*guard, error) {
	cmd := s.command(context.WithoutCancel(ctx), "/bin/sh", "-c", guarding, s.program("pg_ctl"), s.dir)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &guard{cmd, input}, nil
}

// end lets the guard do its work now, and waits for it.
func (g *guard) end() error {
	if err := g.input.Close(); err != nil {
		return err
	}
	return g.cmd.Wait()
}
