package natsserver

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
)

const (
	// readyTimeout bounds Start: recovery of a large store included.
	readyTimeout = 60 * time.Second
	readyStep    = 50 * time.Millisecond

	// maxMemoryStore bounds streams in memory. When told nothing the server
	// takes most of the machine's, too much for a guest in somebody else's
	// process; its limit for files, most of the free disk, is right.
	maxMemoryStore = 256 << 20
)

// ErrStart is returned when the server cannot be started; the text says why.
var ErrStart = errors.New("embedded server: cannot start")

// Config says where the server listens and keeps its data.
type Config struct {
	// StoreDir holds the JetStream data; it is created when missing. Defaults
	// to a temporary directory that Stop removes.
	StoreDir string
	// Host is the address to listen on. Defaults to 127.0.0.1.
	Host string
	// Port to listen on. Defaults to a free one that no outgoing connection will
	// take while the server is being restarted; [Server.Port] tells it.
	Port int
	// NoListen serves connections of this process only. Defaults to false.
	NoListen bool
	// SyncAlways makes every write durable before it is acknowledged, so that
	// a power failure loses nothing. Defaults to false: the server syncs every
	// two minutes.
	SyncAlways bool
	// Name of the server. Defaults to "farandole".
	Name string
	// Logger receives the server's warnings and errors, and its notices at
	// debug level. Defaults to silence.
	Logger zerolog.Logger
	// Tune changes the server's options last of all: users, TLS, clustering.
	// Defaults to none.
	Tune func(*server.Options)
}

func (c Config) withDefaults() Config {
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Name == "" {
		c.Name = "farandole"
	}
	return c
}

// options returns fresh server options; storeDir is where the data is.
func (c Config) options(storeDir string) *server.Options {
	opts := &server.Options{
		ServerName:         c.Name,
		Host:               c.Host,
		Port:               c.Port,
		DontListen:         c.NoListen,
		JetStream:          true,
		StoreDir:           storeDir,
		SyncAlways:         c.SyncAlways,
		JetStreamMaxMemory: maxMemoryStore,
		NoSigs:             true,
	}
	if c.Port == 0 { // nothing listens: the server would take 0 for its default
		opts.Port = server.RANDOM_PORT
	}
	if c.Tune != nil {
		c.Tune(opts)
	}
	return opts
}

// Server is a running server.
type Server struct {
	cfg      Config
	storeDir string
	ns       *server.Server
	release  func() error // gives the store directory back

	stop    sync.Once
	stopErr error
}

// Start starts a server and waits until it accepts connections. Its errors
// match [ErrStart] and say what is wrong with the store directory or the port.
func Start(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Port != 0 || cfg.NoListen {
		return onGivenPorts(func() (*Server, error) { return launch(cfg) })
	}
	return onFreePorts(cfg.Host, 1, func(ports []int) (*Server, error) {
		chosen := cfg
		chosen.Port = ports[0]
		return launch(chosen)
	})
}

// launch starts a server on the port that it is told, or fails at once.
func launch(cfg Config) (*Server, error) {
	storeDir, release, err := openStore(cfg.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	s := &Server{cfg: cfg, storeDir: storeDir, release: release}
	if err := s.run(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrStart, err), s.Stop())
	}
	return s, nil
}

func (s *Server) run() error {
	opts := s.cfg.options(s.storeDir)
	if err := checkPort(opts); err != nil {
		return err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ns = ns
	log := &logger{log: s.cfg.Logger, fatal: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)
	ns.Start()
	for deadline := time.Now().Add(readyTimeout); !ns.ReadyForConnections(readyStep); {
		select {
		case text := <-log.fatal:
			if strings.HasPrefix(text, "Error listening on ") {
				return fmt.Errorf("%w is not free: %s", errPort, text)
			}
			return errors.New(text)
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %s", readyTimeout)
		}
	}
	return nil
}

// ClientURL is where clients of other processes connect, without credentials.
func (s *Server) ClientURL() string { return s.ns.ClientURL() }

// StoreDir is where the data is.
func (s *Server) StoreDir() string { return s.storeDir }

// Port is the port that the server listens on, 0 when it does not listen.
func (s *Server) Port() int {
	u, err := url.Parse(s.ClientURL())
	if err != nil || s.cfg.NoListen {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return 0
	}
	return port
}

// Config is what starts this server again, after a Stop, with the same address
// and data (unless its store was a temporary one).
func (s *Server) Config() Config {
	cfg := s.cfg
	cfg.Port = s.Port()
	return cfg
}

// InProcessConn makes a connection that does not pass through the network. It
// makes a Server a [github.com/nats-io/nats.go.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// Reload applies new options to the running server: tune replaces
// [Config.Tune]. Clients whose login is no longer right are disconnected.
func (s *Server) Reload(tune func(*server.Options)) error {
	s.cfg.Tune = tune
	opts := s.cfg.options(s.storeDir)
	opts.Port = s.Port()
	if err := s.ns.ReloadOptions(opts); err != nil {
		return fmt.Errorf("embedded server: reload: %w", err)
	}
	return nil
}

// Stop shuts the server down, waits for it, and removes a temporary store.
// Stopping twice is fine.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		if s.ns != nil {
			s.ns.Shutdown()
			s.ns.WaitForShutdown()
		}
		s.stopErr = s.release()
	})
	return s.stopErr
}

// openStore makes sure that dir can be used, by this server alone, and returns
// how to give it back. An empty dir means a temporary one.
func openStore(dir string) (string, func() error, error) {
	if dir == "" {
		temp, err := os.MkdirTemp("", "farandole-nats-")
		if err != nil {
			return "", nil, fmt.Errorf("temporary store directory: %w", err)
		}
		return temp, func() error { return os.RemoveAll(temp) }, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", nil, fmt.Errorf("store directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "farandole.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("store directory is not writable: %w", err)
	}
	if err := lockFile(lock); err != nil {
		return "", nil, errors.Join(fmt.Errorf("store directory %s is in use by another process: %w", dir, err), lock.Close())
	}
	return dir, lock.Close, nil
}

// checkPort says at once that the port is taken: the server itself reports it
// only after it has recovered the whole store.
func checkPort(opts *server.Options) error {
	if opts.DontListen || opts.Port <= 0 {
		return nil
	}
	return checkFree(opts.Host, opts.Port)
}
