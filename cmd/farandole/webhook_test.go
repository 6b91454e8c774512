package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestWebhook_delivers_signed_events_and_says_so(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	type request struct {
		header http.Header
		body   []byte
	}
	requests := make(chan request, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Header, body}
	}))
	t.Cleanup(receiver.Close)
	secrets := filepath.Join(t.TempDir(), "secrets")
	must(t, os.WriteFile(secrets, []byte(webhookSecret+"\n"), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	stderr, ended := &logged{}, make(chan int, 1)
	go func() {
		args := append([]string{
			"webhook", receiver.URL + "/hook", "--name", "partner", "--type", "order.placed.v1,order.shipped.v1",
			"--header", "X-Tenant=7", "--structured", "--secret-file", secrets, "--http", "127.0.0.1:0",
		}, s.flags...)
		ended <- run(ctx, args, streams{in: strings.NewReader(""), out: io.Discard, err: stderr})
	}()
	s.publish(t, `{"a":1}`)
	got := <-requests
	e, err := event.Decode(map[string][]string(got.header), got.body)
	if err != nil || string(e.Data()) != `{"a":1}` || got.header.Get("X-Tenant") != "7" || got.header.Get("Idempotency-Key") != string(event.EventKeyOf(e)) {
		t.Errorf("%v, %v: %v", e, err, got.header)
	}
	key, err := standardwebhooks.NewWebhook(webhookSecret)
	must(t, err)
	must(t, key.Verify(got.body, got.header))

	ready := regexp.MustCompile(`ready: partner, (http://\S+), NATS nats://`)
	var where string
	bustest.Eventually(t, time.Minute, func() error {
		m := ready.FindStringSubmatch(stderr.String())
		if m == nil {
			return fmt.Errorf("not ready: %s", stderr)
		}
		where = m[1]
		return nil
	})
	for path, want := range map[string]string{
		"/readyz": `"partner":"ok"`, "/metrics": `farandole_webhook_delivery_seconds_count{consumer="partner",status="200"} 1`,
	} {
		// The delivery counts when its answer has been read, which is after the receiver gave it.
		bustest.Eventually(t, time.Minute, func() error {
			if body := get(t, where+path); !strings.Contains(body, want) {
				return fmt.Errorf("GET %s: %q is missing in %s", path, want, body)
			}
			return nil
		})
	}
	cancel()
	if code := <-ended; code != exitDone {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// A webhook whose name is new leaves out what is stored, takes patterns of types, and
// delivers what is published once it is ready.
func TestWebhook_begins_now_with_all_types_of_a_domain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.publish(t, `{"n":"old"}`)
	bodies := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- string(body)
	}))
	t.Cleanup(receiver.Close)
	deliver := func(name string, flags ...string) (stderr *logged, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		stderr = &logged{}
		ended := make(chan int, 1)
		args := append([]string{"webhook", receiver.URL, "--name", name, "--type", "order.*"}, append(flags, s.flags...)...)
		go func() { ended <- run(ctx, args, streams{in: strings.NewReader(""), out: io.Discard, err: stderr}) }()
		bustest.Eventually(t, time.Minute, func() error {
			if !strings.Contains(stderr.String(), "ready: "+name) {
				return fmt.Errorf("not ready: %s", stderr)
			}
			return nil
		})
		return stderr, func() {
			cancel()
			if code := <-ended; code != exitDone {
				t.Errorf("exit %d: %s", code, stderr)
			}
		}
	}
	bustest.Eventually(t, time.Minute, func() error { // the clock that a start goes by may be slow by a second
		stderr, stop := deliver("now-"+strings.ToLower(rand.Text()[:8]), "--from-now")
		defer stop()
		if strings.Contains(stderr.String(), "old_events") {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
	for len(bodies) > 0 {
		<-bodies
	}
	_, stop := deliver("now", "--from-now")
	s.publish(t, `{"n":"new"}`)
	if got := <-bodies; got != `{"n":"new"}` {
		t.Errorf("delivered %s", got)
	}
	stop()
	stderr, stop := deliver("since", "--since", "1h")
	defer stop()
	for _, want := range []string{`{"n":"old"}`, `{"n":"new"}`} {
		if got := <-bodies; got != want {
			t.Errorf("delivered %s, want %s", got, want)
		}
	}
	bustest.Eventually(t, time.Minute, func() error {
		if !strings.Contains(stderr.String(), "old_events") {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
}

func TestWebhook_usage(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, []byte(" \n"), 0o600))
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"no URL", []string{"--name", "a", "--type", "a.b.v1"}, exitUsage, "<url>"},
		{"no name", []string{"http://h", "--type", "a.b.v1"}, exitUsage, "--name"},
		{"no type", []string{"http://h", "--name", "a"}, exitUsage, "--type"},
		{"scheme", []string{"ftp://anna:hunter2@h", "--name", "a", "--type", "a.b.v1"}, exitUsage, "URL"},
		{"bad name", []string{"http://h", "--name", "A", "--type", "a.b.v1"}, exitUsage, `"A"`},
		{"bad type", []string{"http://h", "--name", "a", "--type", "Placed"}, exitUsage, "Placed"},
		{"bad secret", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--secret", "whsec_hunter2"}, exitUsage, "Secrets"},
		{"bad header", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--header", "Ce-Id=hunter2"}, exitUsage, "Ce-Id"},
		{"no such file", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--secret-file", "/no/such/file"}, exitUsage, "/no/such/file"},
		{"empty file", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--secret-file", empty}, exitUsage, "no secret"},
		{"bad pattern", []string{"http://h", "--name", "a", "--type", "a*"}, exitUsage, "pattern"},
		{"two starts", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--from-now", "--since", "1h"}, exitUsage, "--since"},
		{"start to come", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--since=-1h"}, exitUsage, "--since"},
		{"timeout", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--timeout=-1s"}, exitUsage, "Timeout"},
		{"no server", []string{"http://h", "--name", "a", "--type", "a.b.v1", "--server", "nats://127.0.0.1:1", "--wait", "50ms"}, exitFailed, "cannot connect"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := farandole(t, "", append([]string{"webhook"}, tt.args...)...)
			if got.code != tt.want || !strings.Contains(got.err, tt.says) || strings.Contains(got.err, "hunter2") || got.out != "" {
				t.Errorf("exit %d, stdout %q, stderr %q; want %d saying %q", got.code, got.out, got.err, tt.want, tt.says)
			}
		})
	}
}

func TestWebhook_without_streams_says_what_to_do(t *testing.T) {
	t.Parallel()
	got := farandole(t, "", "webhook", "http://127.0.0.1:1", "--name", "a", "--type", "a.b.v1",
		"--server", bustest.Server(t).URL(), "--prefix", bustest.Prefix())
	if got.code != exitFailed || !strings.Contains(got.err, "farandole topology apply") {
		t.Errorf("%+v", got)
	}
}

func TestWebhook_concurrency(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	if got := s.run(t, "", "webhook", "http://127.0.0.1:1", "--name", "a", "--type", "a.b.v1", "--concurrency=-1"); got.code != exitUsage || !strings.Contains(got.err, "Concurrency") {
		t.Errorf("%+v", got)
	}
}
