package resilience

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Transport is an [http.RoundTripper] under a guard's policies. An attempt lasts until
// its answer's body is read or closed: so long it has its place and its timeout.
//
//   - A status from 500 on and 429 are failures, though they are answers: the breaker
//     counts them. If no retry is left, the caller gets the answer as it is.
//   - A request is retried only if it may arrive twice: its method is idempotent, or it
//     has an Idempotency-Key. Its body must be one that can be sent again (GetBody).
//   - Retry-After is kept, if it is no longer than RetryConfig.MaxDelay.
//   - The error of a request that was not made, or not in time, matches what
//     [Guard.Do] says.
//
// It is not for connections that are switched to another protocol.
type Transport struct {
	guard *Guard
	base  http.RoundTripper
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport puts a guard around base, which is required: http.DefaultTransport, say.
func NewTransport(g *Guard, base http.RoundTripper) *Transport {
	return &Transport{guard: g, base: base}
}

// CloseIdleConnections closes those of base, if it has any.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends a request. The caller has to close the answer's body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	tries := tries{guard: t.guard}
	next := req
	for {
		resp, o, err := t.once(next)
		cause := err
		if resp != nil {
			cause = statusOf(resp, time.Now())
		}
		if o != Failure || !repeatable(req) {
			return resp, tries.end(err)
		}
		delay, again := tries.next(ctx, o, cause)
		if !again {
			return resp, err
		}
		discard(resp)
		if !tries.wait(ctx, delay) {
			return nil, fmt.Errorf("%w; before: %w", context.Cause(ctx), cause)
		}
		if next, err = repeat(req); err != nil {
			return nil, err
		}
	}
}

// once makes one attempt.
func (t *Transport) once(req *http.Request) (resp *http.Response, o Outcome, err error) {
	c := &attempt{guard: t.guard, caller: req.Context()}
	if err = c.enter(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, Neutral, err
	}
	over := true
	defer func() {
		if over {
			c.leave(o, err)
		}
	}()
	resp, err = t.base.RoundTrip(req.WithContext(c.ctx)) //nolint:contextcheck // a child of the request's
	if err != nil {
		err = c.explain(err)
		return nil, c.outcome(err), err
	}
	status := statusOf(resp, time.Now())
	if o = c.outcome(status); o == Failure {
		c.report(o, status) // its body does not make it better
	}
	if resp.Body == http.NoBody {
		return resp, o, nil
	}
	over = false
	resp.Body = &body{ReadCloser: resp.Body, attempt: c, outcome: o}
	return resp, o, nil
}

// body ends its attempt when it has been read, or is closed.
type body struct {
	io.ReadCloser
	attempt *attempt
	outcome Outcome
	once    sync.Once
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF: //nolint:errorlint // as io.Reader has it
		b.end(b.outcome, nil)
	case err != nil:
		err = b.attempt.explain(err)
		b.end(b.attempt.outcome(err), err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.end(b.outcome, nil)
	return err
}

func (b *body) end(o Outcome, err error) { b.once.Do(func() { b.attempt.leave(o, err) }) }

// maxDiscard is how many bytes of an answer are read that nobody wants, so that its
// connection can be used again.
const maxDiscard = 16 << 10

func discard(resp *http.Response) {
	if resp != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDiscard) //nolint:errcheck // then the connection is closed
		resp.Body.Close()
	}
}

// repeatable says whether a request may be sent again.
func repeatable(req *http.Request) bool {
	idempotent := slices.Contains([]string{
		"", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete,
	}, req.Method) || req.Header.Get("Idempotency-Key") != ""
	return idempotent && (req.Body == nil || req.Body == http.NoBody || req.GetBody != nil)
}

// repeat is the request with a new body.
func repeat(req *http.Request) (*http.Request, error) {
	again := req.WithContext(req.Context())
	if req.GetBody != nil {
		fresh, err := req.GetBody()
		if err != nil {
			return nil, fmt.Errorf("resilience: body to send again: %w", err)
		}
		again.Body = fresh
	}
	return again, nil
}

// statusError is an answer with a status from 400 on, for the classifier, the retries
// and the log. It is nobody's error: the caller gets the answer.
type statusError struct {
	status int
	after  time.Duration
}

// statusOf returns nil for an answer with another status.
func statusOf(resp *http.Response, now time.Time) error {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	return &statusError{resp.StatusCode, RetryAfter(resp.Header.Get("Retry-After"), now)}
}

func (e *statusError) Error() string {
	return fmt.Sprintf("resilience: status %d %s", e.status, http.StatusText(e.status))
}
func (e *statusError) StatusCode() int           { return e.status }
func (e *statusError) RetryAfter() time.Duration { return e.after }
