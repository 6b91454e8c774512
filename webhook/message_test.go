package webhook

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
)

// encoded is an event as it is POSTed.
func encoded(t *testing.T, cfg Config, d event.Draft) message {
	t.Helper()
	enc, err := newEncoder(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := enc.encode(bustest.Event(t, d), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// binaryData is data that nothing may touch.
func binaryData() []byte { return []byte("\x00\xff\r\n{\"a\":1.0e2, \"a\" :\u2028}\x1b \n") }

func TestBinaryMode(t *testing.T) {
	t.Parallel()
	d := event.Draft{
		Type: "order.placed.v1", Key: "ord 1", ID: "id-é \"%\"", Subject: "Müller\u2028x", ContentType: "text/plain; charset=latin1", Data: binaryData(),
		Extensions: map[string]string{"region": "eu west", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
	m := encoded(t, valid(), d)
	want := http.Header{
		"Ce-Specversion":   {"1.0"},
		"Ce-Id":            {"id-%C3%A9%20%22%25%22"},
		"Ce-Source":        {"/test"},
		"Ce-Type":          {"order.placed.v1"},
		"Ce-Subject":       {"M%C3%BCller%E2%80%A8x"},
		"Ce-Time":          {"2026-01-02T15:04:05Z"},
		"Ce-Partitionkey":  {"ord%201"},
		"Ce-Correlationid": {"ord%201"},
		"Ce-Region":        {"eu%20west"},
		"Ce-Traceparent":   {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"Content-Type":     {"text/plain; charset=latin1"},
		"Idempotency-Key":  {string(event.NewEventKey("/test", d.ID))},
		"User-Agent":       {"farandole-webhook"},
	}
	if fmt.Sprint(m.header) != fmt.Sprint(want) {
		t.Errorf("headers are\n%v, want\n%v", m.header, want)
	}
	if !bytes.Equal(m.body, d.Data) {
		t.Errorf("body is %q, want %q", m.body, d.Data)
	}
	back, err := event.Decode(map[string][]string(m.header), m.body)
	if err != nil || back.String() != bustest.Event(t, d).String() {
		t.Errorf("decoded %v, %v", back, err)
	}
}

func TestBinaryModeWithoutData(t *testing.T) {
	t.Parallel()
	m := encoded(t, valid(), event.Draft{Type: "order.placed.v1", Key: "k"})
	if _, ok := m.header["Content-Type"]; ok || len(m.body) != 0 {
		t.Errorf("%v, body %q", m.header, m.body)
	}
}

func TestStructuredModeKeepsData(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.Structured = true
	const number = `{"n":12345678901234567890.10, "n":1}`
	m := encoded(t, cfg, event.Draft{Type: "order.placed.v1", Key: "k", ContentType: event.ContentTypeJSON, Data: []byte(number)})
	if got := m.header["Content-Type"]; len(got) != 1 || got[0] != "application/cloudevents+json" {
		t.Errorf("content type %q", got)
	}
	if !bytes.Contains(m.body, []byte(`"data":`+number)) {
		t.Errorf("%s does not embed the data as they are", m.body)
	}
	for name := range m.header {
		if strings.HasPrefix(name, "Ce-") {
			t.Errorf("header %s in structured mode", name)
		}
	}
	m = encoded(t, cfg, event.Draft{Type: "order.placed.v1", Key: "k", ContentType: "application/octet-stream", Data: binaryData()})
	var envelope struct {
		Base64 []byte `json:"data_base64"`
	}
	if err := json.Unmarshal(m.body, &envelope); err != nil || !bytes.Equal(envelope.Base64, binaryData()) {
		t.Errorf("%s, %v", m.body, err)
	}
}

// Data that are an event themselves must not become the event that is delivered.
func TestAnEventAsDataIsDeliveredStructured(t *testing.T) {
	t.Parallel()
	inner := []byte(`{"specversion":"1.0","id":"inner","source":"/evil","type":"evil.done.v1"}`)
	for _, contentType := range []string{
		"application/cloudevents+json", "Application/CloudEvents; charset=utf-8", "application/cloudevents-batch+json",
		" application/cloudevents+json", "\u00a0application/cloudevents+json", "application/cloudevents+json ;charset=utf-8",
		" APPLICATION/cloudevents ; charset=utf-8", "application/cloudevents+avro", "application/cloudevents-v2",
	} {
		d := event.Draft{Type: "order.placed.v1", Key: "k", ContentType: contentType, Data: inner}
		m := encoded(t, valid(), d)
		e, err := overHTTP(t, m)
		if err != nil || e.Type() != "order.placed.v1" || !bytes.Equal(e.Data(), inner) || e.DataContentType() != contentType {
			t.Errorf("%s: decoded %v, %v", contentType, e, err)
		}
	}
}

// overHTTP is what a receiver makes of a message: HTTP takes blanks off the
// ends of headers.
func overHTTP(t *testing.T, m message) (event.Event, error) {
	t.Helper()
	var wire bytes.Buffer
	sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://receiver.test/hook", bytes.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	sent.Header = m.header
	if err := sent.Write(&wire); err != nil {
		t.Fatal(err)
	}
	req, err := http.ReadRequest(bufio.NewReader(&wire))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	return event.Decode(map[string][]string(req.Header), body)
}

// The signature is the one of the standard's own library, by all secrets.
func TestSignature(t *testing.T) {
	t.Parallel()
	other := "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 64))
	cfg := valid()
	cfg.Secrets = []string{testSecret, other}
	m := encoded(t, cfg, event.Draft{Type: "order.placed.v1", Key: "k", Data: binaryData()})
	if m.header.Get("webhook-id") != m.header.Get(headerKey) {
		t.Errorf("id %s, key %s", m.header.Get("webhook-id"), m.header.Get(headerKey))
	}
	for _, tt := range []struct {
		secret string
		body   []byte
		ok     bool
	}{
		{testSecret, m.body, true},
		{other, m.body, true},
		{"whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{8}, 64)), m.body, false},
		{testSecret, append(bytes.Clone(m.body), ' '), false},
	} {
		s, err := standardwebhooks.NewWebhook(tt.secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(tt.body, m.header); (err == nil) != tt.ok {
			t.Errorf("Verify %q = %v, want %t", tt.body, err, tt.ok)
		}
	}
}

// The example of the standard, signed at its time.
func TestSignatureOfTheStandardsExample(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.Secrets = []string{testSecret}
	enc, err := newEncoder(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := message{header: http.Header{}, body: []byte(`{"test": 2432232314}`)}
	if err := enc.sign(m, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0)); err != nil {
		t.Fatal(err)
	}
	if got := m.header.Get("webhook-signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" || m.header.Get("webhook-timestamp") != "1614265330" {
		t.Errorf("%v", m.header)
	}
}

func TestHeadersOfTheConfiguration(t *testing.T) {
	t.Parallel()
	cfg := valid()
	cfg.Headers = map[string]string{"authorization": "Bearer x", "X-Tenant": "7", "user-agent": "acme"}
	m := encoded(t, cfg, event.Draft{Type: "order.placed.v1", Key: "k"})
	if m.header.Get("Authorization") != "Bearer x" || m.header.Get("X-Tenant") != "7" || m.header.Get("User-Agent") != "acme" {
		t.Errorf("%v", m.header)
	}
	m.header.Set("X-Tenant", "8")
	if again := encoded(t, cfg, event.Draft{Type: "order.placed.v1", Key: "k"}); again.header.Get("X-Tenant") != "7" {
		t.Error("messages share their headers")
	}
	cfg.Headers, cfg.Consumer.Version = nil, "v1.2 (\r\nX: y)"
	enc, err := newEncoder(cfg, url.UserPassword("anna", "p:w"))
	if err != nil {
		t.Fatal(err)
	}
	if got := enc.header; got.Get("Authorization") != "Basic YW5uYTpwOnc=" || got.Get("User-Agent") != "farandole-webhook/v1.2Xy" {
		t.Errorf("%v", got)
	}
}

func TestAnEventThatCannotBeEncodedIsAnError(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		cfg := valid()
		cfg.Structured = structured
		enc, err := newEncoder(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := bustest.Event(t, event.Draft{Type: "order.placed.v1", Key: "k"})
		e.SetSubject("a\r\nEvil: 1")
		if _, err := enc.encode(e, time.Now()); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("structured %t: %v", structured, err)
		}
	}
}
