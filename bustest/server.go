package bustest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/natsserver"
)

const localhost = "127.0.0.1"

// ServerConfig says how a server of its own starts.
type ServerConfig struct {
	// StoreDir keeps the data. Defaults to a temporary directory of the test.
	StoreDir string
	// SyncAlways makes every write durable before it is acknowledged. Defaults to false.
	SyncAlways bool
	// Tune changes the server's options: users, TLS. Defaults to none.
	Tune func(*server.Options)
}

// TestServer is an embedded server for tests.
type TestServer struct {
	mu  sync.Mutex
	cfg natsserver.Config
	es  *natsserver.Server // nil while stopped
}

// URL is where clients connect; it stays the same across [TestServer.Restart].
func (s *TestServer) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "nats://" + net.JoinHostPort(s.cfg.Host, fmt.Sprint(s.cfg.Port))
}

// InProcessConn makes a connection that does not pass through the network, so
// that a TestServer can be the InProcess of a bus.Config.
func (s *TestServer) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.es == nil {
		return nil, errors.New("bustest: server is stopped")
	}
	return s.es.InProcessConn()
}

// Stop stops the server and keeps its data. Stopping twice is fine.
func (s *TestServer) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.stop(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
}

// Restart stops the server if it runs, and starts it with the same port and data.
func (s *TestServer) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop(tb)
	if err := s.start(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
}

// Reload changes the options of the running server; tune replaces
// [ServerConfig.Tune], also for later restarts.
func (s *TestServer) Reload(tb testing.TB, tune func(*server.Options)) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Tune = tune
	if s.es == nil {
		tb.Fatal("bustest: reload: server is stopped")
	}
	if err := s.es.Reload(tune); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
}

func (s *TestServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	es, err := natsserver.Start(s.cfg)
	if err != nil {
		return err
	}
	s.es = es
	s.cfg.Port = es.Port()
	return nil
}

func (s *TestServer) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.es == nil {
		return nil
	}
	es := s.es
	s.es = nil
	return es.Stop()
}

// StartServer starts a server for this test alone; it is stopped at the end.
func StartServer(tb testing.TB, cfg ServerConfig) *TestServer {
	tb.Helper()
	if cfg.StoreDir == "" {
		cfg.StoreDir = tb.TempDir()
	}
	s := &TestServer{cfg: natsserver.Config{
		Host:       localhost,
		StoreDir:   cfg.StoreDir,
		SyncAlways: cfg.SyncAlways,
		Tune:       cfg.Tune,
	}}
	if err := s.start(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(func() { s.Stop(tb) })
	return s
}

// StartCluster starts n servers as one cluster with a leader for this test
// alone; they are stopped at the end.
func StartCluster(tb testing.TB, n int) []*TestServer {
	tb.Helper()
	members, err := natsserver.StartCluster(n, natsserver.Config{StoreDir: tb.TempDir()})
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	servers := make([]*TestServer, n)
	for i, member := range members {
		servers[i] = &TestServer{cfg: member.Config(), es: member}
		tb.Cleanup(func() { servers[i].Stop(tb) })
	}
	return servers
}

// shared is the test binary's one server.
//
//nolint:gochecknoglobals // it is made by the first test that asks and ends after the last
var shared struct {
	sync.Mutex
	server *TestServer
}

// Server returns the server that the tests of this binary share. Its package
// must run its tests with [Main].
func Server(tb testing.TB) *TestServer {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s := &TestServer{cfg: natsserver.Config{Host: localhost}}
		if err := s.start(); err != nil {
			tb.Fatalf("bustest: %v", err)
		}
		if err := keepStreams(tb.Context(), s); err != nil {
			tb.Fatalf("bustest: %v", errors.Join(err, s.stop()))
		}
		shared.server = s
	}
	return shared.server
}

// keepStreams makes a stream that stays. With the last stream of an account
// the server deletes the directory of streams, while another test may be about
// to make a stream in it.
func keepStreams(ctx context.Context, s *TestServer) error {
	b, err := bus.Connect(ctx, bus.Config{InProcess: s})
	if err != nil {
		return err
	}
	_, err = b.JetStream().CreateStream(ctx, jetstream.StreamConfig{Name: "bustest", Subjects: []string{"bustest"}})
	return errors.Join(err, b.Close())
}

// serverLeaks are goroutines that nats-server itself leaves behind when it
// stops: after a stream's replicas were raised, and for half a minute where a
// stream with a source was removed before it had found that, or just then.
var serverLeaks = []goleak.Option{
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"),
	goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).tryDeleteSourcingConsumer.func1"),
}

// atOnce is how many parallel tests run at once. They wait for a server, a lease
// or a delay most of the time, so processors are no measure of it.
const atOnce = "24"

// Main runs a package's tests, stops the shared server, fails when goroutines
// have leaked, and exits. Up to 24 parallel tests run at once unless -parallel
// says otherwise. On Linux temporary files, those of [testing.T.TempDir] too, are
// in /dev/shm if 4 GiB are free there, unless TMPDIR says otherwise.
// Usually m is a *testing.M.
func Main(m interface{ Run() int }) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	err := keepFilesInMemory()
	if !chosen {
		err = errors.Join(err, flag.Set("test.parallel", atOnce))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bustest:", err)
		os.Exit(2)
	}
	code := m.Run()
	shared.Lock()
	if shared.server != nil {
		if err := shared.server.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bustest:", err)
			code = max(code, 1)
		}
	}
	shared.Unlock()
	if code == 0 {
		if err := goleak.Find(serverLeaks...); err != nil {
			fmt.Fprintln(os.Stderr, "bustest: goroutines leaked:", err)
			code = 1
		}
	}
	os.Exit(code)
}
