package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/testkit/require"
)

// TestMain lets the test binary be the processes that sections start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == consumeRole || os.Args[1] == callRole) {
		main()
		return
	}
	bustest.Main(m)
}

// Every section runs, is verified and leaves its figures; every target is judged.
func TestQuick(t *testing.T) {
	t.Parallel()
	var out, log bytes.Buffer
	file := filepath.Join(t.TempDir(), "results.json")
	if err := run(t.Context(), []string{"-quick", "-json", file}, &out, &log); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Hop) != len(settings()) {
		t.Errorf("settings: %d", len(r.Hop))
	}
	for _, s := range r.Hop {
		for _, v := range s.Variants {
			if len(v.Runs) != 1 || v.Median <= 0 || v.ToRaw <= 0 {
				t.Errorf("%s: %+v", s.Setting, v)
			}
		}
	}
	if r.Publish == nil || r.Memory == nil || len(r.Latency) != 3 || len(r.Saga) < 2 || len(r.Codec) != 4 || len(r.Policies) != 17 || len(r.Scale) != 9 || len(r.StandStill) != 4 || len(r.Remembered) != 3 || r.Outage == nil || r.Server == "" {
		t.Errorf("%s", text)
	}
	if len(r.Targets) != len(targets()) {
		t.Errorf("%d targets", len(r.Targets))
	}
	noPostgres := len(r.Outbox) == 1 && !require.Listed(require.Postgres)
	for _, v := range r.Targets {
		if noPostgres && (strings.Contains(v.Name, namePostgres) || strings.Contains(v.Name, nameCDC)) {
			t.Logf("%s: Postgres is not installed: NOT RUN", v.Name)
			continue
		}
		if v.Measured == nil || *v.Measured <= 0 {
			t.Errorf("%s is not measured", v.Name)
		}
		if !strings.Contains(out.String(), v.Name) {
			t.Errorf("%s is not printed", v.Name)
		}
	}
	if strings.ContainsRune(out.String(), 0x1b) {
		t.Error("escapes where no terminal is")
	}
}

// A runner that does not do its work is found out, whichever section it is of.
func TestHop_fails_when_a_variant_does_not_do_its_work(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := &bench{options: options{reps: 1, hops: 100}, out: &bytes.Buffer{}, log: &bytes.Buffer{}}
	_, err := b.compare(t.Context(), s.URL(), settings()[0], []variant{{"idler", func(context.Context, *hopbench.Stage, int) error { return nil }}})
	if !errors.Is(err, hopbench.ErrUnverified) || !strings.Contains(err.Error(), "idler") {
		t.Errorf("error %v", err)
	}
}

// Raw, naive and Watermill write the headers that Farandole writes, so that all
// move the same bytes.
func TestVariants_write_the_same_headers(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	var want []string
	var wantBytes int
	all := variants()
	slices.Reverse(all) // Farandole first: the measure
	for _, v := range all {
		var names []string
		var size int
		_, err := hopbench.Run(t.Context(), bus.Config{URL: s.URL()}, hopbench.Config{Events: 1}, func(ctx context.Context, stage *hopbench.Stage, n int) error {
			if err := v.run(ctx, stage, n); err != nil {
				return err
			}
			stream, err := stage.Bus.JetStream().Stream(ctx, stage.Bus.Names().EventsStream())
			if err != nil {
				return err
			}
			m, err := stream.GetLastMsgForSubject(ctx, stage.Bus.Names().Stored(stage.Bus.Names().EventSubject(hopbench.Out.Type(), hopbench.KeyOf(0)), event.DefaultPartitions))
			if err != nil {
				return err
			}
			for name := range m.Header {
				if strings.HasPrefix(name, "ce-") || name == "Nats-Msg-Id" {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			size = len(m.Data)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		if want == nil {
			want, wantBytes = names, size
		}
		if !slices.Equal(names, want) || size != wantBytes || size != hopbench.DataBytes {
			t.Errorf("%s: headers %v, %d bytes; want %v, %d bytes", v.Name, names, size, want, wantBytes)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		want error
	}{
		{"", nil},
		{"-quick", nil},
		{"-only hop,codec -settings r1 -reps 4 -n 100", nil},
		{"-reps 0", errUsage},
		{"-reps 5", errUsage},
		{"-n 99", errUsage},
		{"-outage 10s", nil},
		{"-outage 0s", errUsage},
		{"-only hops", errUsage},
		{"-settings r5", errUsage},
		{"-loud", errUsage},
		{"more", errUsage},
		{"-h", flag.ErrHelp},
	} {
		if _, err := parse(strings.Fields(tt.args), &bytes.Buffer{}); !errors.Is(err, tt.want) {
			t.Errorf("%q: error %v, want %v", tt.args, err, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	full := func(stream float64) *results {
		r := &results{
			Publish:    &publishFigures{Raw: []float64{100, 200, 300}, Bus: []float64{180, 190, 100}},
			Codec:      []costFigure{{Name: nameDecodeBinary, Allocs: 13}},
			Policies:   []costFigure{{Name: nameRejected, NS: []float64{200}}, {Name: nameTimedOut, NS: []float64{10_000_000}}},
			Latency:    []latencyFigure{{Name: nameRaw, P50: []float64{100}}, {Name: nameKV, P50: []float64{400}}},
			Memory:     &memoryFigures{FewKB: []int64{100, 100}, ManyKB: []int64{120, 160}},
			Scale:      []scaleFigure{{Handlers: fewHandlers, Processes: 1, PerSecond: 100}, {Handlers: fewHandlers, Processes: 2, PerSecond: 170}},
			StandStill: []standStillFigure{{"partition", changeLeave, time.Second}, {"partition", changeKill, 7 * time.Second}},
			Outage:     &outageFigures{Idle: []float64{250}, Calls: []float64{200}, Allowed: 198},
			Remembered: []rememberedFigure{{Name: nameRaw, ServerHeap: 1000}, {Name: namePartition, Events: 10, ServerHeap: 1400, ConsumerHeap: 170}},
			Saga: []sagaFigure{
				{Database: nameSQLite, Concurrency: 1, PerSecond: []float64{20}, P99: []float64{40}},
				{Database: nameSQLite, Concurrency: manyAtOnce, PerSecond: []float64{250}, P99: []float64{5001}},
				{Database: namePostgres, Concurrency: manyAtOnce, PerSecond: []float64{219}, P99: []float64{5000}},
			},
			Outbox: []outboxFigures{
				{Database: nameSQLite, Drain: drainFigures{Raw: []float64{200}, Relay: []float64{100}}},
				{
					Database: namePostgres, Drain: drainFigures{Raw: []float64{200}, Relay: []float64{99}},
					Latency: []outboxLatency{{WokenBy: nameCDC, P50: 20_000}, {WokenBy: "this process", P50: 90_000}},
				},
			},
		}
		for _, set := range settings() {
			r.Hop = append(r.Hop, hopSetting{Setting: set.name, Variants: []hopVariant{
				{Name: nameRaw, Median: 100},
				{Name: nameNaive, Median: stream / 8},
				{Name: nameWatermill, Median: 20},
				{Name: nameKV, Median: 45},
				{Name: namePartition, Median: stream},
			}})
		}
		return r
	}
	outcomes := func(r *results) (text string) {
		for _, v := range judge(r) {
			switch {
			case v.Measured == nil:
				text += "-"
			case v.OK:
				text += "+"
			default:
				text += "x"
			}
		}
		return text
	}
	for _, tt := range []struct {
		name string
		r    *results
		want string
	}{
		{"nothing measured", &results{}, "---------------------------"},
		{"at the bounds", full(67.5), "++xx+++++x++xx+x+x+xx++x++x"},
		{"slower", full(44), "+xxx+x+++x++xx+x+x+xx++x++x"},
	} {
		if got := outcomes(tt.r); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
