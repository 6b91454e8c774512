package order

import (
	"encoding/json"
	"net/http"
	"strings"
)

// problem is an RFC 9457 problem document.
type problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail"`
	Errors []fieldError `json:"errors,omitempty"`
}

// fieldError says what is wrong with one part of the body, or one parameter
// of the query.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"`   // JSON pointer as a URI fragment
	Parameter string `json:"parameter,omitempty"` // its name
	Detail    string `json:"detail"`
}

// newProblem makes a document whose type is a URN of this kind of problem.
func newProblem(status int, kind, detail string) *problem {
	return &problem{Type: "urn:farandole:problem:" + kind, Title: http.StatusText(status), Status: status, Detail: detail}
}

func badRequest(detail string) *problem {
	return newProblem(http.StatusBadRequest, "bad-request", detail)
}

func invalid(errs []fieldError) *problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid-order", "The order cannot be accepted as it is.")
	p.Errors = errs
	return p
}

// badQuery is the problem document of a wrong query. Its detail names every error.
func badQuery(errs []fieldError) *problem {
	var detail []string
	for _, e := range errs {
		detail = append(detail, e.Parameter+" "+e.Detail)
	}
	p := badRequest("The query cannot be answered: " + strings.Join(detail, "; ") + ".")
	p.Errors = errs
	return p
}

// unavailable asks the client to send the request again soon.
func unavailable(detail string) *problem {
	return newProblem(http.StatusServiceUnavailable, "unavailable", detail)
}

func (p *problem) write(w http.ResponseWriter) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errcheck // the client has gone, nobody is left to tell
}
