package main

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// result is how one run of the program ended.
type result struct {
	code     int
	out, err string
}

// farandole runs the program with these arguments and stdin, without a terminal.
func farandole(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	code := run(t.Context(), args, streams{in: strings.NewReader(stdin), out: &out, err: &err})
	return result{code, out.String(), err.String()}
}

// system is a provisioned system of its own on the shared server.
type system struct {
	*bus.Bus
	flags []string // how the program connects to it
}

func newSystem(t *testing.T) system {
	t.Helper()
	b := bustest.NewBus(t)
	return system{b, []string{"--server", bustest.Server(t).URL(), "--prefix", b.Names().Prefix}}
}

// run runs a command on the system.
func (s system) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return farandole(t, stdin, append(args, s.flags...)...)
}

// park dead-letters an event for the consumer payment, as its ledger does, and
// returns the letter's id.
func (s system) park(t *testing.T, e event.Event, failure event.Attempt) string {
	t.Helper()
	ctx := t.Context()
	m, err := s.Message(e)
	must(t, err)
	ledger, err := dedup.NewKV(s.Bus, dedup.Config{})
	must(t, err)
	claim, err := ledger.Claim(ctx, dedup.Request{Consumer: "payment", Key: event.EventKeyOf(e), Lease: 1e10})
	must(t, err)
	letter, err := dlq.Letter(s.Names(), m, dlq.Origin{Stream: s.Names().EventsStream(), Sequence: 7}, dlq.Story{
		Consumer: "payment", Reason: event.ReasonExhausted, Key: event.EventKeyOf(e),
		Attempts: []event.Attempt{failure}, Failures: 1, At: failure.At,
	}, s.Conn().MaxPayload())
	must(t, err)
	must(t, ledger.Park(ctx, claim, &failure, letter))
	_, err = s.JetStream().CreateOrUpdateConsumer(ctx, s.Names().EventsStream(), jetstream.ConsumerConfig{
		Durable: "payment", FilterSubject: s.Names().RedriveFilter("payment"),
	})
	must(t, err)
	return "payment." + string(event.EventKeyOf(e))
}

func (s system) seal(t *testing.T, d event.Draft) event.Event {
	t.Helper()
	e, err := s.Seal(d)
	must(t, err)
	return e
}

// send stores messages, many at a time.
func (s system) send(t *testing.T, messages ...*nats.Msg) {
	t.Helper()
	pending := make([]*bus.Pending, len(messages))
	for i, m := range messages {
		p, err := s.Send(t.Context(), m)
		must(t, err)
		pending[i] = p
	}
	for _, p := range pending {
		_, err := p.Wait(t.Context())
		must(t, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	nowhere := []string{"--server", "nats://127.0.0.1:1", "--wait", "50ms"}
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string // on stderr
	}{
		{"help", []string{"--help"}, exitDone, ""},
		{"help of a command", []string{"dlq", "replay", "--help"}, exitDone, ""},
		{"version", []string{"version"}, exitDone, ""},
		{"no command", nil, exitUsage, "farandole --help"},
		{"unknown command", []string{"dance"}, exitUsage, "dance"},
		{"unknown flag", []string{"version", "--loud"}, exitUsage, "--loud"},
		{"bad number", []string{"dlq", "list", "--limit", "many"}, exitUsage, "limit"},
		{"bad reason", []string{"dlq", "list", "--reason", "because"}, exitUsage, "reason"},
		{"impossible limit", []string{"dlq", "list", "--limit", "0"}, exitUsage, "--all"},
		{"two starts", []string{"tail", "--from-start", "--since", "1m"}, exitUsage, "from-start"},
		{"two ids", []string{"publish", "a.b.v1", "k", "--id", "x", "--content-id"}, exitUsage, "content-id"},
		{"not JSON", []string{"publish", "a.b.v1", "k", "--data", "{"}, exitUsage, "not JSON"},
		{"no such file", []string{"publish", "a.b.v1", "k", "--data", "@/no/such/file"}, exitFailed, "/no/such/file"},
		{"discard without a terminal", []string{"dlq", "discard", "--all"}, exitUsage, "--yes"},
		{"no server", append([]string{"dlq", "list"}, nowhere...), exitFailed, "cannot connect"},
		{"escape in an argument", []string{"\x1b[2J"}, exitUsage, `\u001b[2J`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := farandole(t, "", tt.args...)
			if got.code != tt.want || !strings.Contains(got.err, tt.says) {
				t.Errorf("exit %d, stderr %q; want %d saying %q", got.code, got.err, tt.want, tt.says)
			}
			if tt.want != exitDone && got.out != "" {
				t.Errorf("stdout %q", got.out)
			}
			if strings.ContainsRune(got.err, 0x1b) {
				t.Errorf("escape on stderr: %q", got.err)
			}
		})
	}
}

// closedPipe is a stdout whose reader has gone.
type closedPipe struct{ lines int }

func (p *closedPipe) Write(b []byte) (int, error) {
	if p.lines == 0 {
		return 0, syscall.EPIPE
	}
	p.lines--
	return len(b), nil
}

func TestA_closed_pipe_ends_quietly(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for range 3 {
		s.publish(t, `{"a":1}`)
	}
	var stderr bytes.Buffer
	args := append([]string{"tail", "--no-follow", "--json"}, s.flags...)
	code := run(t.Context(), args, streams{in: strings.NewReader(""), out: &closedPipe{1}, err: &stderr})
	if code != exitDone || stderr.Len() > 0 {
		t.Errorf("exit %d, stderr %q", code, stderr.String())
	}
}

func (s system) publish(t *testing.T, data string) event.Event {
	t.Helper()
	e := s.seal(t, event.Draft{Type: "order.placed.v1", Key: "ord-1", ContentType: event.ContentTypeJSON, Data: []byte(data)})
	_, err := s.Publish(context.WithoutCancel(t.Context()), e)
	must(t, err)
	return e
}
