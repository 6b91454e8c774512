package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// patience bounds start and stop, recovery after a kill included.
	patience = 2 * time.Minute
	step     = 50 * time.Millisecond

	// fastShutdown tells postgres to end all connections, write all to disk and stop.
	fastShutdown = syscall.SIGINT
)

// process is a running postgres with all its children. It has no goroutine, so
// that one which lasts as long as the program is no leak.
type process struct {
	cmd *exec.Cmd
	// life is a pipe whose other end each of the processes holds: it ends with
	// the last of them.
	life *os.File
}

// launch starts postgres and waits until it takes connections.
func (s *Server) launch(ctx context.Context) (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	life, held, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	cmd := s.command(context.WithoutCancel(ctx), s.program("postgres"), "-D", s.data())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{held}
	if err = errors.Join(cmd.Start(), held.Close(), log.Close()); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	p := &process{cmd, life}
	if err := p.ready(ctx, s.URL(maintenance)); err != nil {
		return nil, errors.Join(err, p.end(os.Kill))
	}
	return p, nil
}

// ready waits until the server takes connections.
func (p *process) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not ready: %w", err)
		}
		if ended, err := p.ended(step); err != nil || ended {
			return errors.Join(errors.New("it has ended"), err)
		}
	}
}

// ended waits for the end of all processes and says whether it has come.
func (p *process) ended(within time.Duration) (bool, error) {
	if err := p.life.SetReadDeadline(time.Now().Add(within)); err != nil {
		return false, err
	}
	switch _, err := p.life.Read(make([]byte, 1)); {
	case errors.Is(err, io.EOF):
		return true, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, nil
	default:
		return false, err
	}
}

// end sends the signal, and SIGKILL to what does not obey, and waits until all
// processes have ended.
func (p *process) end(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	obeyed, err := p.ended(patience)
	if err == nil && !obeyed {
		err = fmt.Errorf("it does not end within %s of %s", patience, signal)
		err = errors.Join(err, p.cmd.Process.Kill())
	}
	// How it ended is in its log; after a kill it is never well.
	if waited := p.cmd.Wait(); !errors.As(waited, new(*exec.ExitError)) {
		err = errors.Join(err, waited)
	}
	return errors.Join(err, p.life.Close())
}
