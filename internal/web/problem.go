// Package web has what the HTTP interfaces of this module share: problem documents
// (RFC 9457) in one style, and reading a JSON document from a request.
package web

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Problem is a problem document.
type Problem struct {
	// Type is a URN of this kind of problem: programs go by it.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail says what is wrong this time and what to do, for people.
	Detail string `json:"detail"`
	// Errors are the single parts that are wrong. Empty for none.
	Errors []Fault `json:"errors,omitempty"`
}

// Fault says what is wrong with one part of the body, or with one parameter of
// the query.
type Fault struct {
	Pointer   string `json:"pointer,omitempty"`   // JSON pointer (RFC 6901) as a URI fragment
	Parameter string `json:"parameter,omitempty"` // its name
	Detail    string `json:"detail"`
}

// NewProblem returns a document. kind is the end of its type, as in
// "invalid-order", and its title.
func NewProblem(status int, kind, detail string) *Problem {
	title := strings.ReplaceAll(kind, "-", " ")
	return &Problem{
		Type: "urn:farandole:problem:" + kind, Title: strings.ToUpper(title[:1]) + title[1:], Status: status, Detail: detail,
	}
}

// Write answers with the document. A client that may try again later is told to
// wait for a second, unless the header says how long.
func (p *Problem) Write(w http.ResponseWriter) {
	if p.Status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	write(w, p.Status, "application/problem+json", p)
}

// WriteJSON answers with a JSON document.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	write(w, status, "application/json", body)
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errcheck // the client has gone, nobody is left to tell
}
