package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/internal/text"
)

// contentTypeStructured is the content type of a structured-mode message.
const contentTypeStructured = "application/cloudevents+json"

// EncodeStructured makes the structured-mode message of an event, without a
// subject: one JSON object with all attributes. JSON data is embedded as it is,
// byte for byte; any other data, JSON with space around it, and the bare null
// (which would mean "no data") are carried in data_base64. It checks the event
// as [Validate] does and returns its error.
func EncodeStructured(e Event) (*nats.Msg, error) {
	var room extensionRoom
	ctx, attributes, _, err := inspect(e, room[:0])
	if err != nil {
		return nil, err
	}
	body := make([]byte, 0, 512+len(e.Data()))
	for i, v := range attributes {
		if v.set {
			body = appendName(body, attributeName(i))
			body = appendText(body, v.text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ctx.Extensions)) {
		body = appendName(body, name)
		text, _ := formatAttribute(ctx.Extensions[name])
		switch ctx.Extensions[name].(type) {
		case bool, int32:
			body = append(body, text...)
		default:
			body = appendText(body, text)
		}
	}
	switch data := e.Data(); {
	case len(data) == 0:
	case !e.DataBase64 && isJSON(e.DataContentType()) && embeddable(data):
		body = append(appendName(body, "data"), data...)
	default:
		body = append(appendName(body, "data_base64"), '"')
		body = base64.StdEncoding.AppendEncode(body, data)
		body = append(body, '"')
	}
	body = append(body, '}')
	header := nats.Header{headerContentType: {contentTypeStructured}}
	return &nats.Msg{Header: header, Data: body}, nil
}

// appendName begins a member of the envelope, and the envelope with the first one.
func appendName(b []byte, name string) []byte {
	if len(b) == 0 {
		b = append(b, '{')
	} else {
		b = append(b, ',')
	}
	return append(appendText(b, name), ':')
}

// appendText appends a JSON string.
func appendText(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) //nolint:errcheck // the text of an attribute is valid UTF-8
	return b
}

// embeddable reports whether data comes back the same when it stands in an envelope.
func embeddable(data []byte) bool {
	return len(bytes.Trim(data, jsonSpace)) == len(data) && string(data) != "null" &&
		nesting(data) < maxNesting && utf8.Valid(data) && json.Valid(data)
}

// decodeStructured reads a JSON envelope, strictly: encoding/json alone would
// replace bad UTF-8 and lone surrogates, take the last of two members with one
// name, and pass numbers through float64.
func decodeStructured(body []byte) (Event, error) {
	if err := checkObject(body); err != nil {
		return Event{}, fmt.Errorf("%w: body: %w", ErrDecode, err)
	}
	var (
		b    builder
		data envelopeData
		seen = make(map[string]bool)
	)
	for rawName, raw := range members(body) {
		name, ok := unescape(rawName)
		switch {
		case !ok:
			b.wrong.add("body", "member name with half of a surrogate pair: %s", text.Quote(string(rawName)))
		case seen[name]:
			b.wrong.add(text.Quote(name), "repeated")
		case string(raw) == "null":
		case name == "data":
			data.raw = raw
		case name == "data_base64":
			data.base64 = raw
		case attributeIndex(name) >= 0 || isExtensionName(name):
			b.readMember(name, raw)
		}
		seen[name] = true
	}
	content, fault := data.decode(b.values[attrContentType].text)
	if fault != "" {
		b.wrong.add("data", "%s", fault)
	}
	e, err := b.event(content)
	if err != nil {
		return Event{}, err
	}
	e.DataBase64 = data.base64 != nil
	return e, nil
}

// readMember sets the attribute called name from its JSON value.
func (b *builder) readMember(name string, raw []byte) {
	switch c := raw[0]; {
	case c == '"':
		value, ok := unescape(raw)
		if !ok {
			b.wrong.add(name, "half of a surrogate pair: %s", text.Quote(string(raw)))
			return
		}
		b.setText(name, value)
	case attributeIndex(name) >= 0, name == ExtExpiry:
		b.wrong.add(name, "want a string, have %s", text.Quote(string(raw)))
	case c == 't' || c == 'f':
		b.setExtension(name, c == 't')
	case c == '{' || c == '[':
		b.wrong.add(name, "want a string, a boolean or an integer, have %s", text.Quote(string(raw)))
	default:
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil {
			b.wrong.add(name, "want an integer of 32 bits, have %s", text.Quote(string(raw)))
			return
		}
		b.setExtension(name, int32(n))
	}
}

// envelopeData is the data of an event as its envelope writes it.
type envelopeData struct {
	raw, base64 []byte // JSON values, nil when absent
}

// decode returns the bytes of the data, or what is wrong with it. JSON stays as
// it was written.
func (d envelopeData) decode(contentType string) (data []byte, fault string) {
	switch {
	case d.raw != nil && d.base64 != nil:
		return nil, "both data and data_base64"
	case d.base64 != nil:
		return decodeBase64(d.base64)
	case d.raw == nil || isJSON(contentType) || d.raw[0] != '"':
		return d.raw, ""
	}
	text, ok := unescape(d.raw)
	if !ok {
		return nil, "half of a surrogate pair in text"
	}
	return []byte(text), ""
}

func decodeBase64(raw []byte) (data []byte, fault string) {
	if raw[0] != '"' {
		return nil, "data_base64 is not a string"
	}
	text, ok := unescape(raw)
	if !ok || strings.ContainsAny(text, "\r\n") { // line breaks: the decoder would skip them
		return nil, "data_base64 is not base64"
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, "data_base64 is not base64"
	}
	return data, ""
}
