package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/farandole/farandole/resilience"
)

const (
	maxHeader = 64 << 10 // bytes of an answer's headers; more is a failure
	maxRead   = 16 << 10 // bytes of an answer's body that are read; more costs its connection
	maxTold   = 512      // bytes of them that an error tells
)

// client POSTs to one origin. It is safe for concurrent use.
type client struct {
	url       *url.URL
	timeout   time.Duration
	redirects int
	// transport, and not a http.Client: that puts the URL into its errors,
	// makes GETs of redirected POSTs and follows them anywhere.
	transport http.RoundTripper
	base      *http.Transport // what is under the guard
}

func newClient(target *url.URL, guard *resilience.Guard, cfg Config) *client {
	base := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    cfg.Consumer.Concurrency,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // a compressed answer could be of any size
	}
	return &client{
		url: target, timeout: cfg.Timeout, redirects: cfg.FollowRedirects, transport: resilience.NewTransport(guard, base), base: base,
	}
}

// answer is what the receiver says.
type answer struct {
	status int
	header http.Header
	// body is the beginning of it.
	body []byte
}

// post makes one delivery within the timeout. Its error matches [ErrReceiver]
// and means that there was no answer, or, if it matches [resilience.ErrOpen], no delivery.
func (c *client) post(ctx context.Context, m message) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, ErrTimeout)
	defer cancel()
	target := c.url
	for redirects := 0; ; redirects++ {
		a, err := c.send(ctx, target, m)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return answer{}, fmt.Errorf("%w: %w", ErrReceiver, err)
		}
		next := redirect(target, a)
		if next == nil || redirects == c.redirects {
			return a, nil
		}
		target = next
	}
}

// send makes one request.
func (c *client) send(ctx context.Context, target *url.URL, m message) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(m.body))
	if err != nil {
		return answer{}, err
	}
	// Not given above: it need not be parsed again, nor told in an error.
	req.URL, req.Header = target, m.header
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRead)) //nolint:errcheck // the status is the answer: a body that breaks off changes nothing
	return answer{status: resp.StatusCode, header: resp.Header, body: body[:min(len(body), maxTold)]}, nil
}

// redirect returns where an answer asks for the same request to go within the
// same origin, else nil.
func redirect(from *url.URL, a answer) *url.URL {
	location := a.header.Get("Location")
	if location == "" || a.status != http.StatusTemporaryRedirect && a.status != http.StatusPermanentRedirect {
		return nil
	}
	to, err := from.Parse(location)
	if err != nil || origin(to) != origin(from) {
		return nil
	}
	to.User = nil
	return to
}

// origin is the scheme, host and port of a URL.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
