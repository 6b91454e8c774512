package hopbench_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/topology"
)

const events = 300

func connect(t *testing.T) bus.Config {
	t.Helper()
	return bus.Config{InProcess: bustest.Server(t)}
}

// streams are the names of the streams at the server under a prefix.
func streams(t *testing.T, prefix string) (found []string) {
	t.Helper()
	names := bustest.Connect(t, connect(t)).JetStream().StreamNames(t.Context())
	for name := range names.Name() {
		if strings.HasPrefix(strings.TrimPrefix(name, "KV_"), prefix+"-") {
			found = append(found, name)
		}
	}
	if err := names.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRun_measures_and_leaves_nothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []ledger.Kind{ledger.KV, ledger.Partition} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			cfg := hopbench.Config{Events: events, Prefix: hopbench.Prefix()}
			r, err := hopbench.Run(t.Context(), connect(t), cfg, hopbench.Farandole(kind, 16))
			if err != nil {
				t.Fatal(err)
			}
			if r.Events != events || r.Replicas != 1 || r.HopsPerSec <= 0 || r.PublishedPerSec <= 0 || r.ElapsedMS <= 0 || r.Server == "" {
				t.Errorf("%+v", r)
			}
			if left := streams(t, cfg.Prefix); left != nil {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Whatever ends a run, what it made is deleted.
func TestRun_leaves_nothing_when_it_fails(t *testing.T) {
	t.Parallel()
	errRunner := errors.New("out of breath")
	for _, tt := range []struct {
		name string
		run  func(stop context.CancelFunc) hopbench.Runner
		want error
	}{
		{"the runner fails", func(context.CancelFunc) hopbench.Runner {
			return func(context.Context, *hopbench.Stage, int) error { return errRunner }
		}, errRunner},
		{"interrupted", func(stop context.CancelFunc) hopbench.Runner {
			return func(ctx context.Context, s *hopbench.Stage, n int) error {
				stop()
				return hopbench.Farandole(ledger.KV, 1)(ctx, s, n)
			}
		}, context.Canceled},
		{"does nothing", func(context.CancelFunc) hopbench.Runner {
			return func(context.Context, *hopbench.Stage, int) error { return nil }
		}, hopbench.ErrUnverified},
		{"no such ledger", func(context.CancelFunc) hopbench.Runner { return hopbench.Farandole("paper", 1) }, hopbench.ErrConfig},
		{"illegal concurrency", func(context.CancelFunc) hopbench.Runner { return hopbench.Farandole(ledger.KV, -1) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			cfg := hopbench.Config{Events: events, Prefix: hopbench.Prefix()}
			if _, err := hopbench.Run(ctx, connect(t), cfg, tt.run(stop)); err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if left := streams(t, cfg.Prefix); left != nil {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	used := bustest.NewBus(t).Names().Prefix
	for _, tt := range []struct {
		name string
		cfg  hopbench.Config
		want error
	}{
		{"no events", hopbench.Config{Events: -1}, hopbench.ErrConfig},
		{"no replicas", hopbench.Config{Replicas: -1}, hopbench.ErrConfig},
		{"replicas without a cluster", hopbench.Config{Replicas: 3}, topology.ErrTopology},
		{"a prefix in use", hopbench.Config{Prefix: used}, hopbench.ErrExists},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := streams(t, used)
			if _, err := hopbench.Run(t.Context(), connect(t), tt.cfg, hopbench.Farandole(ledger.KV, 1)); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if after := streams(t, used); len(before) == 0 || len(after) != len(before) {
				t.Errorf("streams before %v, after %v", before, after)
			}
		})
	}
}

// A prefix is in use when any one of its streams is there.
func TestRun_refuses_a_prefix_used_in_part(t *testing.T) {
	t.Parallel()
	prefix := hopbench.Prefix()
	js := bustest.Connect(t, connect(t)).JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: prefix + "-DLQ", Subjects: []string{prefix + ".dlq.>"}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(context.Background(), prefix+"-DLQ"); err != nil {
			t.Error(err)
		}
	})
	if _, err := hopbench.Run(t.Context(), connect(t), hopbench.Config{Prefix: prefix}, hopbench.Farandole(ledger.KV, 1)); !errors.Is(err, hopbench.ErrExists) && !errors.Is(err, topology.ErrTopology) {
		t.Errorf("error %v", err)
	}
	if left := streams(t, prefix); len(left) != 1 {
		t.Errorf("streams %v, want the one that was there", left)
	}
}
