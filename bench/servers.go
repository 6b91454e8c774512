package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/natsserver"
)

const (
	localhost = "127.0.0.1"
	// serverStart is how long servers have to be ready, a cluster's election included.
	serverStart = 30 * time.Second
	// serverStop is how long a server has to stop before it is killed.
	serverStop = 15 * time.Second
)

// servers are nats-server processes that belong together: one, or a cluster.
type servers struct {
	url       string
	profile   string // where the first tells of its heap
	processes []*exec.Cmd
}

// startServers starts n processes with stores below dir and waits until all
// of them can hold replicas.
func startServers(ctx context.Context, binary, dir string, n int, syncAlways bool) (*servers, error) {
	ports, err := natsserver.FreePorts(localhost, 3*n)
	if err != nil {
		return nil, err
	}
	s := &servers{profile: "http://" + net.JoinHostPort(localhost, strconv.Itoa(ports[2*n]))}
	var urls []string
	for i := range n {
		home := filepath.Join(dir, "server-"+strconv.Itoa(i+1))
		if err := os.MkdirAll(home, 0o750); err != nil {
			return nil, errors.Join(err, s.stop())
		}
		config := filepath.Join(home, "nats.conf")
		if err := os.WriteFile(config, []byte(serverConfig(i, ports[:n], ports[n:2*n], ports[2*n+i], home, syncAlways)), 0o600); err != nil {
			return nil, errors.Join(err, s.stop())
		}
		// An interrupt stops what runs on the servers first, then them: neither
		// the context nor a terminal's Ctrl-C reaches the processes.
		process := exec.CommandContext(context.WithoutCancel(ctx), binary, "-c", config, "-l", filepath.Join(home, "log")) //nolint:gosec // built here
		process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := process.Start(); err != nil {
			return nil, errors.Join(err, s.stop())
		}
		s.processes = append(s.processes, process)
		urls = append(urls, "nats://"+net.JoinHostPort(localhost, strconv.Itoa(ports[i])))
	}
	s.url = strings.Join(urls, ",")
	if err := s.ready(ctx, n); err != nil {
		return nil, errors.Join(fmt.Errorf("nats-server is not ready: %w", err), s.logs(dir), s.stop())
	}
	return s, nil
}

func serverConfig(i int, clients, routes []int, profile int, home string, syncAlways bool) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, "server_name: bench-%d\nlisten: %s:%d\nprof_port: %d\njetstream {\n  store_dir: %q\n", i+1, localhost, clients[i], profile, filepath.Join(home, "store"))
	if syncAlways {
		sb.WriteString("  sync_interval: always\n")
	}
	sb.WriteString("}\n")
	if len(routes) > 1 {
		fmt.Fprintf(&sb, "cluster {\n  name: bench\n  listen: %s:%d\n  routes: [\n", localhost, routes[i])
		for _, port := range routes {
			fmt.Fprintf(&sb, "    nats://%s:%d\n", localhost, port)
		}
		sb.WriteString("  ]\n}\n")
	}
	return sb.String()
}

// ready waits until a stream with n replicas can be made.
func (s *servers) ready(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, serverStart)
	defer cancel()
	b, err := bus.Connect(ctx, bus.Config{URL: s.url, Wait: serverStart})
	if err != nil {
		return err
	}
	const probe = "bench-probe"
	for {
		_, err = b.JetStream().CreateStream(ctx, jetstream.StreamConfig{Name: probe, Subjects: []string{probe}, Storage: jetstream.MemoryStorage, Replicas: n})
		if err == nil || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err == nil {
		err = b.JetStream().DeleteStream(ctx, probe)
	}
	return errors.Join(err, b.Close())
}

// logs is what the servers had to say, for an error.
func (s *servers) logs(dir string) error {
	var errs []error
	for i := range s.processes {
		text, err := os.ReadFile(filepath.Join(dir, "server-"+strconv.Itoa(i+1), "log"))
		if err == nil {
			err = fmt.Errorf("log of server %d:\n%s", i+1, text)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// stop ends the processes, all of them at once, and waits.
func (s *servers) stop() error {
	for _, p := range s.processes {
		_ = p.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended already: Wait tells
	}
	var errs []error
	for _, p := range s.processes {
		kill := time.AfterFunc(serverStop, func() { _ = p.Process.Kill() }) //nolint:errcheck // likewise
		err := p.Wait()
		kill.Stop()
		if exit := (&exec.ExitError{}); errors.As(err, &exit) && exit.ExitCode() == 1 { // what nats-server calls the end by a signal
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("nats-server: %w", err))
		}
	}
	return errors.Join(errs...)
}
