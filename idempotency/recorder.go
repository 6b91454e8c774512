package idempotency

import (
	"bytes"
	"net/http"
	"slices"
)

// recorder holds an answer back. From when it is too large to be kept it is passed on.
type recorder struct {
	w      http.ResponseWriter
	limit  int
	header http.Header
	status int // 0 before WriteHeader
	body   bytes.Buffer
	passed bool // to the client
}

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter]. Informational answers are dropped.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if !r.passed && r.body.Len()+len(b) <= r.limit {
		return r.body.Write(b)
	}
	if !r.passed {
		if err := r.pass(); err != nil {
			return 0, err
		}
	}
	return r.w.Write(b)
}

// pass sends the client what was held back.
func (r *recorder) pass() error {
	r.passed = true
	a := Answer{Status: r.status, Header: r.header, Body: r.body.Bytes()}
	err := a.send(r.w)
	r.body = bytes.Buffer{}
	return err
}

// answer is what is stored.
func (r *recorder) answer() Answer {
	r.WriteHeader(http.StatusOK)
	a := Answer{Status: r.status, Header: r.header.Clone(), Body: r.body.Bytes(), TooLarge: r.passed}
	for _, name := range []string{
		"Connection", "Date", "Keep-Alive", "Proxy-Connection", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		a.Header.Del(name)
	}
	return a
}

// send writes the answer.
func (a Answer) send(w http.ResponseWriter) error {
	for name, values := range a.Header {
		w.Header()[name] = slices.Clone(values)
	}
	w.WriteHeader(a.Status)
	_, err := w.Write(a.Body)
	return err
}

// final reports whether a status is the result of a request. Others ask the client
// to try again.
func final(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return status < 500
	}
}
