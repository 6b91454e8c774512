package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/farandole/farandole/internal/text"
)

// unsaid is the Content-Type of a client that was not told one: curl -d, urllib.
const unsaid = "application/x-www-form-urlencoded"

// ReadJSON reads the body of a request, one JSON document, into a struct. It
// accepts no member that the struct does not have, each at most once and in one
// spelling, and only UTF-8. A request without a Content-Type may be JSON, and so may
// one with that of forms; one with another Content-Type is refused. If the request is
// wrong, the document says where.
//
// Afterwards the body can be read once more.
func ReadJSON(w http.ResponseWriter, r *http.Request, limit int64, into any) *Problem {
	if contentType := r.Header.Get("Content-Type"); !MayBeJSON(contentType) {
		return NewProblem(http.StatusUnsupportedMediaType, "unsupported-media-type",
			"The body is JSON: send it with Content-Type: application/json.")
	}
	body, p := ReadBody(w, r, limit)
	if p != nil {
		return p
	}
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(true)); err != nil {
		fault := explain(err, body)
		p := NewProblem(http.StatusBadRequest, "invalid-body", "The body is not the JSON document that it has to be: "+fault.Detail+".")
		if fault.Pointer != "#" {
			p.Detail = "The body is not the JSON document that it has to be: " + strings.TrimPrefix(fault.Pointer, "#/") + " " + fault.Detail + "."
		}
		p.Errors = []Fault{fault}
		return p
	}
	return nil
}

// ReadBody reads the body of a request, which can be read once more afterwards.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *Problem) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, NewProblem(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("The body exceeds %d bytes.", tooLarge.Limit))
	}
	if err != nil {
		return nil, NewProblem(http.StatusBadRequest, "invalid-body", "The body could not be read to its end.")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// MayBeJSON reports whether a body with this Content-Type is to be read as JSON: the
// type is JSON, there is none, or it is what clients say of any body.
func MayBeJSON(contentType string) bool {
	return contentType == "" || contentType == unsaid || isJSON(contentType)
}

// isJSON reports whether a Content-Type is JSON, in UTF-8 if it says so at all.
func isJSON(contentType string) bool {
	media, parameters, err := mime.ParseMediaType(contentType)
	charset, given := parameters["charset"]
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json")) &&
		(!given || strings.EqualFold(charset, "utf-8"))
}

// explain tells what is wrong with a body, in the words of JSON.
func explain(err error, body []byte) Fault {
	var wrong *json.SemanticError
	var syntax *jsontext.SyntacticError
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return Fault{Pointer: "#", Detail: "it is empty"}
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return Fault{Pointer: fragment(syntax.JSONPointer), Detail: "is there twice"}
	case errors.As(err, &syntax):
		return Fault{Pointer: "#", Detail: fmt.Sprintf("it is not JSON in UTF-8, or not one document, at byte %d", syntax.ByteOffset)}
	case errors.As(err, &wrong) && errors.Is(err, json.ErrUnknownName):
		return Fault{Pointer: fragment(wrong.JSONPointer), Detail: "is no member, or one that is spelt in another way"}
	case errors.As(err, &wrong):
		detail := "must be " + text.JSONKind(wrong.GoType)
		if wrong.JSONPointer == "" {
			detail = "it " + detail
		}
		return Fault{Pointer: fragment(wrong.JSONPointer), Detail: detail}
	default:
		return Fault{Pointer: "#", Detail: "it is not JSON"}
	}
}

// fragment is a pointer as a URI fragment.
func fragment(p jsontext.Pointer) string { return "#" + (&url.URL{Path: string(p)}).EscapedPath() }
