package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Part is one service of the process.
type Part struct {
	// Name tells parts apart, as in "payment". Required.
	Name string
	// Run works until ctx ends and returns after everything it started has
	// ended. Nil for a part that only answers HTTP.
	Run func(ctx context.Context) error
	// Ready returns nil while the part makes progress. Defaults to always.
	Ready func() error
	// Routes are what the part answers, by path: "/" is everything, "/stock"
	// that alone, and "/gateway/" everything below, of which the handler does
	// not see the "/gateway".
	Routes map[string]http.Handler
	// Admin is what the part answers to operators alone, by path as in Routes.
	Admin map[string]http.Handler
}

// Config says what to run.
type Config struct {
	// Parts to run. Required.
	Parts []Part
	// Listener is where HTTP is served; Run closes it. Nil for no HTTP.
	Listener net.Listener
	// Admin is where the parts' Admin routes are served, and /readyz with its
	// reasons; Run closes it. Nil for none.
	Admin net.Listener
	// Hosts are the names of this process in URLs, without a port, as in
	// shop.example. "localhost" and loopback addresses are always added. Requests
	// under other names are refused. Defaults to any name, but on a loopback
	// listener to "localhost" and loopback addresses alone: a foreign page whose
	// name resolves to 127.0.0.1 (DNS rebinding) must not reach it.
	Hosts []string
	// Metrics are served at /metrics. Defaults to none.
	Metrics prometheus.Gatherer
	// Grace is how long requests under way may take at the end. Defaults to 10 s.
	Grace time.Duration
	// OnReady is called once, when all parts are ready for the first time.
	// Defaults to nothing.
	OnReady func()
	// Logger logs requests that were cut off, and parts that are not ready when
	// somebody asks. Defaults to silence.
	Logger zerolog.Logger
}

// ErrPart is returned when a part ended by itself.
var ErrPart = errors.New("service ended")

// Host runs the parts of a process.
type Host struct {
	cfg      Config
	stopping atomic.Bool

	mu      sync.Mutex
	unready map[string]bool // parts that were not ready when last asked
}

// New returns a host that runs nothing yet.
func New(cfg Config) *Host {
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Second
	}
	return &Host{cfg: cfg, unready: map[string]bool{}}
}

// Run runs all parts until ctx ends, then stops them, and returns nil after a
// clean stop. A part that ends before ctx does takes the others down: an error
// matching [ErrPart] names it and wraps why.
func (h *Host) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var running sync.WaitGroup
	servers := h.servers()
	errs := make([]error, len(h.cfg.Parts)+len(servers))
	for i, p := range h.cfg.Parts {
		if p.Run == nil {
			continue
		}
		running.Go(func() {
			errs[i] = h.runPart(work, p)
			if work.Err() == nil {
				stop(fmt.Errorf("%w: %s", ErrPart, p.Name))
			}
		})
	}
	if h.cfg.OnReady != nil {
		running.Go(func() { h.awaitReady(work) })
	}
	for i, server := range servers {
		running.Go(func() {
			if err := server.Serve(server.listener); !errors.Is(err, http.ErrServerClosed) {
				errs[len(h.cfg.Parts)+i] = fmt.Errorf("http: %w", err)
				stop(err)
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-work.Done():
	}
	h.stopping.Store(true)
	h.stopServers(ctx, servers)
	stop(nil)
	running.Wait()
	return errors.Join(errs...)
}

// readyPoll is how often parts that are not ready are asked again.
const readyPoll = 10 * time.Millisecond

// awaitReady calls OnReady when all parts are ready.
func (h *Host) awaitReady(ctx context.Context) {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for !h.isReady() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	h.cfg.OnReady()
}

func (h *Host) isReady() bool {
	for _, p := range h.cfg.Parts {
		if p.Ready != nil && p.Ready() != nil {
			return false
		}
	}
	return true
}

// runPart runs one part; ending while ctx goes on is an error.
func (h *Host) runPart(ctx context.Context, p Part) error {
	err := p.Run(ctx)
	switch {
	case ctx.Err() == nil && err == nil:
		return fmt.Errorf("%w: %s, without a reason", ErrPart, p.Name)
	case ctx.Err() == nil:
		return fmt.Errorf("%w: %s: %w", ErrPart, p.Name, err)
	case err != nil:
		return fmt.Errorf("stop %s: %w", p.Name, err)
	default:
		return nil
	}
}

// server is an HTTP server and where it listens.
type server struct {
	*http.Server
	listener net.Listener
}

// servers are the public one and the admin one, as far as they are wanted.
func (h *Host) servers() []server {
	var servers []server
	if l := h.cfg.Listener; l != nil {
		servers = append(servers, server{NewServer(protect(h.Handler(), l.Addr(), h.cfg.Hosts)), l})
	}
	if l := h.cfg.Admin; l != nil {
		servers = append(servers, server{NewServer(protect(h.AdminHandler(), l.Addr(), h.cfg.Hosts)), l})
	}
	return servers
}

// stopServers lets requests finish for the grace period, then cuts them off.
func (h *Host) stopServers(ctx context.Context, servers []server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Grace)
	defer cancel()
	for _, s := range servers {
		if err := s.Shutdown(ctx); err != nil {
			h.cfg.Logger.Warn().Err(err).Msg("requests cut off at the end of the grace period")
			s.Close() //nolint:errcheck // what it would say, Shutdown has said
		}
	}
}

// NewServer is an HTTP server that no slow client can hold for ever: a request
// has a minute to arrive, and its answer two to be taken.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
	}
}
