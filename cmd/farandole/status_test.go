package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/status"
)

// update writes the golden files anew.
var update = flag.Bool("update", false, "write the golden files of screens")

// golden compares a screen with the one that is kept, and wants it to fit.
func golden(t *testing.T, name, got string, columns int) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s: the screen is\n%s\nwant\n%s", name, got, want)
	}
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		if w := lipgloss.Width(line); w > columns || strings.TrimRight(line, " ") != line {
			t.Errorf("%s: a line takes %d of %d columns, or ends in blanks: %q", name, w, columns, line)
		}
	}
}

// busy is a system in which everything is to be seen.
func busy(now time.Time) standing {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	return standing{
		System: status.System{
			At: now, DeadLetters: 16, Replays: 2,
			Streams: []status.Stream{
				{Name: "EVENTS", Messages: 1234567, Bytes: 812 << 20, Oldest: ago(49 * time.Hour), Newest: ago(0), Replicas: 3, Current: 3},
				{Name: "TIMERS", Messages: 12, Bytes: 9 << 10, Oldest: ago(time.Hour), Newest: ago(time.Minute), Replicas: 3, Current: 2},
				{Name: "DLQ", Messages: 18, Bytes: 18 << 10, MaxMessages: 20, Oldest: ago(5 * time.Hour), Newest: ago(4 * time.Second), Replicas: 3, Current: 3},
				{Name: "KV_dedup", Messages: 98765, Bytes: 21 << 20, Oldest: ago(24 * time.Hour), Newest: ago(0), Replicas: 3, Current: 3},
			},
			Consumers: []status.Consumer{
				{Status: consumer.Status{Consumer: "audit", Workers: 1}},
				{
					Status: consumer.Status{
						Consumer: "inventory", Workers: 2, Lag: 1204, Oldest: ago(90 * time.Second), InFlight: 64, Retries: 3,
						Paused: []consumer.PausedStatus{{Reason: "operator", Until: time.Date(2026, 3, 4, 6, 0, 0, 0, time.Local), By: "ada@ops-1", Why: "stock is being counted"}},
					},
					DeadLetters: 1,
				},
				{Status: consumer.Status{Consumer: "mailer-of-the-marketing-dept", Unattended: true, Lag: 48213, Oldest: ago(26 * time.Hour)}},
				{Status: consumer.Status{Consumer: "payment", Lag: 17, Oldest: ago(3 * time.Second), InFlight: 17, Retries: 12}, DeadLetters: 12, Replays: 2},
				{Status: consumer.Status{Consumer: "shipping", Unattended: true, Retries: 2, Deferred: 2}, DeadLetters: 3, Gone: true},
			},
		},
		Outbox: &outboxStats{Parked: 3, Pending: 12, Oldest: 4, Reasons: map[string]int{"exhausted": 2, "permanent": 1}},
	}
}

func TestStatusScreenFitsTheTerminal(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	quiet := standing{System: status.System{At: now, Streams: []status.Stream{{Name: "EVENTS", Replicas: 1, Current: 1}}}}
	for _, tt := range []struct {
		name    string
		columns int
		is      standing
	}{
		{"status-80.txt", 80, busy(now)}, {"status-120.txt", 120, busy(now)}, {"status-new-80.txt", 80, quiet},
	} {
		var out bytes.Buffer
		must(t, printStatus(&colorprofile.Writer{Forward: &out, Profile: colorprofile.NoTTY}, tt.is, tt.columns))
		golden(t, tt.name, out.String(), tt.columns)
	}
}

func TestStatusOfASystem(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	got := s.run(t, "", "status")
	if got.code != exitDone || !strings.Contains(got.out, s.Names().EventsStream()) || !strings.Contains(got.out, "no consumers") {
		t.Errorf("status of a new system: %+v", got)
	}
	durable(t, s)
	s.park(t, s.publish(t, "{}"), event.Attempt{Number: 1, At: time.Now(), Class: "error", Error: "no"})
	got = s.run(t, "", "status", "--json")
	var doc struct {
		At          time.Time
		Streams     []status.Stream
		Consumers   []status.Consumer
		DeadLetters int `json:"dead_letters"`
	}
	must(t, json.Unmarshal([]byte(got.out), &doc))
	if got.code != exitDone || len(doc.Streams) != 4 || doc.Streams[0].Messages == 0 || doc.DeadLetters != 1 || len(doc.Consumers) != 1 {
		t.Fatalf("status: %+v", got)
	}
	c := doc.Consumers[0]
	if c.Consumer != "payment" || !c.Unattended || c.DeadLetters != 1 || c.Workers != 0 || c.Oldest.IsZero() == (c.Lag > 0) {
		t.Errorf("the consumer is %+v", c)
	}
	for _, args := range [][]string{{"status"}, {"consumer", "list"}, {"consumer", "show", "payment"}} {
		if got := s.run(t, "", args...); got.code != exitDone || !strings.Contains(got.out, "nobody") {
			t.Errorf("%v does not say that nobody runs it: %+v", args, got)
		}
	}
	must(t, s.JetStream().DeleteConsumer(t.Context(), s.Names().EventsStream(), "payment"))
	if got := s.run(t, "", "status"); got.code != exitDone || !strings.Contains(got.out, "gone") {
		t.Errorf("status of a consumer that is gone: %+v", got)
	}
	if got := farandole(t, "", "status", "--server", "nats://127.0.0.1:1", "--wait", "50ms"); got.code != exitFailed {
		t.Errorf("without a server: %+v", got)
	}
	must(t, s.JetStream().DeleteStream(t.Context(), s.Names().EventsStream()))
	if got := s.run(t, "", "status"); got.code != exitFailed || !strings.Contains(got.err, "topology apply") {
		t.Errorf("without an event stream: %+v", got)
	}
}

func TestStatusShowsTheBacklogOfAnOutbox(t *testing.T) {
	t.Parallel()
	s := stored(t)
	e := s.seal(t, event.Draft{Type: "order.placed.v1", Key: "ord-1"})
	s.parkRow(t, e, event.Attempt{Number: 1})
	got := s.run(t, "", append([]string{"status"}, s.named...)...)
	if got.code != exitDone || !strings.Contains(got.out, "outbox: 1 parked; 0 to publish") {
		t.Errorf("status: %+v", got)
	}
	if got := s.run(t, "", append([]string{"status", "--json"}, s.named...)...); !strings.Contains(got.out, `"parked":1`) {
		t.Errorf("status: %+v", got)
	}
	if got := s.run(t, "", "status", "--store", filepath.Join(t.TempDir(), "none.db")); got.code != exitFailed || !strings.Contains(got.err, "none.db") {
		t.Errorf("status with a file that is not there: %+v", got)
	}
}

func TestConsumerDeleteSaysWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	durable(t, s)
	s.park(t, s.publish(t, "{}"), event.Attempt{Number: 1, At: time.Now(), Class: "error", Error: "no"})
	says := "1 remembered id, 0 waiting retries, 0 timers and 1 dead letter"
	if got := s.run(t, "", "consumer", "delete", "payment"); got.code != exitUsage || !strings.Contains(got.err, "delete consumer payment and give up for good") || !strings.Contains(got.err, says) {
		t.Errorf("without --yes: %+v", got)
	}
	if got := s.run(t, "", "consumer", "list"); !strings.Contains(got.out, "payment") {
		t.Errorf("it is gone without a yes: %+v", got)
	}
	got := s.run(t, "", "consumer", "delete", "payment", "--yes", "--json")
	var doc struct {
		Consumer string
		consumer.Remains
	}
	must(t, json.Unmarshal([]byte(got.out), &doc))
	if got.code != exitDone || doc.Consumer != "payment" || doc.Letters != 1 || doc.Remembered != 1 || !strings.Contains(got.err, "consumer deleted") {
		t.Errorf("with --yes: %+v", got)
	}
	var stats dlq.Stats
	must(t, json.Unmarshal([]byte(s.run(t, "", "dlq", "stats", "--json").out), &stats))
	if stats.Total != 0 {
		t.Errorf("%d letters are left", stats.Total)
	}
	for name, code := range map[string]int{"payment": exitFailed, "Payment": exitUsage} {
		if got := s.run(t, "", "consumer", "delete", name, "--yes"); got.code != code || !strings.Contains(got.err, name) {
			t.Errorf("delete %s: %+v, want exit code %d", name, got, code)
		}
	}
}
