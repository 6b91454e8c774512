package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/internal/testkit/pgtest"
)

var relayReady = regexp.MustCompile(`ready: relay, (http://\S+), NATS \S+`)

// byHand is how a program in another language adds a row: a plain INSERT.
const byHand = `INSERT INTO shop_outbox (message_id, subject, key, headers, data) VALUES ($1, $2, 'ord-1',
	'{"ce-specversion":"1.0","ce-id":"1","ce-source":"/shop","ce-type":"order.placed.v1","ce-partitionkey":"ord-1"}', $3)`

func TestRelay_publishes_what_others_write(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]func(t *testing.T) (target string, flags []string){
		"SQLite": func(t *testing.T) (string, []string) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "shop.db")
			return path, []string{"--store", path}
		},
		"Postgres": func(t *testing.T) (string, []string) {
			t.Helper()
			target := pgtest.Database(t)
			return target, []string{"--database-url", target}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			target, named := flags(t)
			ctx, cancel := context.WithCancel(t.Context())
			stderr, ended := &logged{}, make(chan int, 1)
			args := append(append([]string{"relay", "--table-prefix", "shop_", "--http", "127.0.0.1:0", "--retention", "1m"}, named...), s.flags...)
			go func() { ended <- run(ctx, args, streams{in: strings.NewReader(""), out: io.Discard, err: stderr}) }()
			var url string
			bustest.Eventually(t, time.Minute, func() error {
				if m := relayReady.FindStringSubmatch(stderr.String()); m != nil {
					url = m[1]
					return nil
				}
				return fmt.Errorf("not ready: %s", stderr)
			})
			d, err := database.Open(target)
			must(t, err)
			defer func() { must(t, d.Close()) }()
			subject := s.Names().EventSubject("order.placed.v1", "ord-1")
			_, err = d.DB.ExecContext(t.Context(), byHand, string(event.NewEventKey("/shop", "1")), subject, []byte("\x00\xff"))
			must(t, err)
			bustest.Eventually(t, time.Minute, func() error {
				stream, err := s.JetStream().Stream(t.Context(), s.Names().EventsStream())
				if err != nil {
					return err
				}
				m, err := stream.GetLastMsgForSubject(t.Context(), s.Names().Stored(subject, event.DefaultPartitions))
				if err == nil && string(m.Data) != "\x00\xff" {
					err = fmt.Errorf("data %q", m.Data)
				}
				return err
			})
			for path, want := range map[string]string{"/healthz": "ok", "/readyz": `"relay":"ok"`, "/metrics": "go_goroutines"} {
				if body := fetch(t, url+path); !strings.Contains(body, want) {
					t.Errorf("GET %s: %s", path, body)
				}
			}
			cancel()
			if code := <-ended; code != exitDone {
				t.Errorf("exit %d: %s", code, stderr)
			}
		})
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(body)
}

func TestRelay_fails_with_a_reason(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"no outbox", nil, exitUsage, "--store"},
		{"two", []string{"--store", dir, "--database-url", "postgres://h/db"}, exitUsage, "leave one out"},
		{"no directory", []string{"--store", filepath.Join(dir, "missing", "x.db")}, exitFailed, "its directory does not exist"},
		{"prefix", []string{"--store", dir, "--table-prefix", "Shop"}, exitUsage, "Prefix"},
		{"batch", append([]string{"--store", dir, "--batch=-1"}, s.flags...), exitUsage, "Batch"},
		{"lease", append([]string{"--store", dir, "--lease", "1ms"}, s.flags...), exitUsage, "Lease"},
		{"no NATS", []string{"--store", dir, "--server", "nats://127.0.0.1:1", "--wait", "50ms"}, exitFailed, "bus: cannot connect"},
		{"no Postgres", []string{"--database-url", "postgres://u:hunter2@127.0.0.1:1/db", "--wait", "50ms"}, exitFailed, "database"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := farandole(t, "", append([]string{"relay"}, tt.args...)...)
			if got.code != tt.want || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, "hunter2") {
				t.Errorf("%+v, want %d saying %q", got, tt.want, tt.says)
			}
		})
	}
}
