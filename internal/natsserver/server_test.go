package natsserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, url string, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	ended := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.ClosedHandler(func(*nats.Conn) { close(ended) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-ended
	})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestDataSurvivesARestartOnTheSamePort(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	first := start(t, Config{StoreDir: dir, SyncAlways: true})
	js := connect(t, first.ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}

	second := start(t, first.Config())
	if second.ClientURL() != first.ClientURL() {
		t.Errorf("restarted on %s, want %s", second.ClientURL(), first.ClientURL())
	}
	stream, err := connect(t, second.ClientURL()).Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d messages after the restart, want 1", n)
	}
}

func TestInProcessOnly(t *testing.T) {
	t.Parallel()
	s := start(t, Config{NoListen: true})
	js := connect(t, "", nats.InProcessServer(s))
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Port() != 0 {
		t.Errorf("port %d although nothing listens", s.Port())
	}
}

func TestTemporaryStoreIsRemoved(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for range 2 { // stopping twice is fine
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(s.StoreDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("store directory is still there: %v", err)
	}
}

func TestClusterReplicatesAndSurvivesAMember(t *testing.T) {
	t.Parallel()
	servers, err := StartCluster(3, Config{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stopAll(servers); err != nil {
			t.Error(err)
		}
	})
	js := connect(t, servers[0].ClientURL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	if err := servers[2].Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", nil, jetstream.WithRetryAttempts(20)); err != nil {
		t.Errorf("publish with two of three members: %v", err)
	}
	if servers[2], err = Start(servers[2].Config()); err != nil {
		t.Fatal(err)
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	running := start(t, Config{StoreDir: dir})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"store in use":         {Config{StoreDir: dir}, "in use by another process"},
		"store is a file":      {Config{StoreDir: file}, "not a directory"},
		"port taken":           {Config{Port: running.Port()}, "is not free"},
		"address of elsewhere": {Config{Host: "192.0.2.1"}, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Start(tc.cfg)
			if err == nil {
				t.Fatal("started", s.Stop())
			}
			if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want it to tell %q", err, tc.want)
			}
		})
	}
}
