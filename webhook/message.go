package webhook

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/event"
)

// headerKey names the delivered event: the same on each of its deliveries. It
// also lets Go's transport repeat a request whose reused connection broke.
const headerKey = "Idempotency-Key"

const (
	headerContentType   = "Content-Type"
	headerAuthorization = "Authorization"
)

// message is what is POSTed for one event.
type message struct {
	header http.Header
	body   []byte
}

// encoder makes messages. It is safe for concurrent use.
type encoder struct {
	structured bool
	header     http.Header // of each message
	signers    []*standardwebhooks.Webhook
}

// newEncoder takes a configuration that is valid, and the user of its URL.
func newEncoder(cfg Config, user *url.Userinfo) (*encoder, error) {
	e := &encoder{structured: cfg.Structured, header: make(http.Header, len(cfg.Headers)+2)}
	e.header.Set("User-Agent", userAgent(cfg.Consumer.Version))
	if user != nil {
		password, _ := user.Password()
		e.header.Set(headerAuthorization, "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	for name, value := range cfg.Headers {
		e.header.Set(name, value)
	}
	for i, secret := range cfg.Secrets {
		s, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return nil, fmt.Errorf("%w: Secrets: number %d: %w", ErrConfig, i+1, err)
		}
		e.signers = append(e.signers, s)
	}
	return e, nil
}

// encode makes the message of an event, signed for a delivery that starts now.
func (c *encoder) encode(e event.Event, now time.Time) (message, error) {
	m := message{header: c.header.Clone()}
	key := string(event.EventKeyOf(e))
	m.header.Set(headerKey, key)
	var err error
	// In binary mode the content type of the data becomes that of the request:
	// the receiver would take data that are an event for the one delivered.
	if c.structured || event.AnnouncesEvent(e.DataContentType()) {
		err = m.setStructured(e)
	} else {
		err = m.setBinary(e)
	}
	if err == nil {
		err = c.sign(m, key, now)
	}
	return m, err
}

// setBinary makes attributes headers, encoded as the HTTP binding says, which
// is how the bus encodes them: no value can end its header.
func (m *message) setBinary(e event.Event) error {
	encoded, err := event.Encode(e)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	for name, values := range encoded.Header {
		m.header[http.CanonicalHeaderKey(name)] = values
	}
	m.header.Del("Ce-Datacontenttype") // in HTTP it is the Content-Type, as it is
	if contentType := e.DataContentType(); contentType != "" {
		m.header.Set(headerContentType, contentType)
	}
	m.body = encoded.Data
	return nil
}

func (m *message) setStructured(e event.Event) error {
	encoded, err := event.EncodeStructured(e)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	m.header.Set(headerContentType, encoded.Header.Get(headerContentType))
	m.body = encoded.Data
	return nil
}

// sign adds the headers of Standard Webhooks, if there is a secret.
func (c *encoder) sign(m message, id string, now time.Time) error {
	if len(c.signers) == 0 {
		return nil
	}
	signatures := make([]string, len(c.signers))
	for i, s := range c.signers {
		var err error
		if signatures[i], err = s.Sign(id, now, m.body); err != nil {
			return fmt.Errorf("webhook: sign: %w", err)
		}
	}
	m.header.Set(standardwebhooks.HeaderWebhookID, id)
	m.header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	m.header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}

// userAgent is the default one; what of a version cannot stand in it is left out.
func userAgent(version string) string {
	token := strings.Map(func(r rune) rune {
		if !httpguts.IsTokenRune(r) {
			return -1
		}
		return r
	}, version)
	return strings.TrimSuffix("farandole-webhook/"+token, "/")
}
