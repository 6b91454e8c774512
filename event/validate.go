package event

import (
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/farandole/farandole/internal/text"
)

// The attributes of CloudEvents 1.0, required ones first.
const (
	attrSpecVersion = iota
	attrID
	attrSource
	attrType
	attrSubject
	attrTime
	attrContentType
	attrSchema
	numAttributes

	numRequired = attrSubject
)

// attributeHeaders are the binary-mode header names, by attribute.
var attributeHeaders = [numAttributes]string{ //nolint:gochecknoglobals // a table
	headerPrefix + "specversion",
	headerPrefix + "id",
	headerPrefix + "source",
	headerPrefix + "type",
	headerPrefix + "subject",
	headerPrefix + "time",
	headerPrefix + "datacontenttype",
	headerPrefix + "dataschema",
}

func attributeName(i int) string { return attributeHeaders[i][len(headerPrefix):] }

// attributeIndex returns the attribute called name, or -1.
func attributeIndex(name string) int {
	switch name {
	case "specversion":
		return attrSpecVersion
	case "id":
		return attrID
	case "source":
		return attrSource
	case "type":
		return attrType
	case "subject":
		return attrSubject
	case "time":
		return attrTime
	case "datacontenttype":
		return attrContentType
	case "dataschema":
		return attrSchema
	default:
		return -1
	}
}

// Validate reports, in one error matching [ErrInvalidEvent] that names
// each attribute at fault, every reason why e cannot be published: not
// CloudEvents 1.0, a required attribute missing, a value that is not of its
// attribute's type, an illegal extension name, an error kept by one of the
// SDK's setters. An event that passes is decoded by [Decode] to the same event.
//
// It does not check the shape of the type, which depends on the configured
// prefix: [Names.TypeOf] does. It cannot see extension names that the SDK's
// SetExtension has already folded to lower case.
func Validate(e Event) error {
	var room extensionRoom
	_, _, _, err := inspect(e, room[:0])
	return err
}

// values are the attributes of the specification as text.
type values [numAttributes]struct {
	text string
	set  bool
}

func (v *values) put(i int, text string) { v[i].text, v[i].set = text, true }

// check adds every fault of the values to wrong, and parses them into p.
func (v *values) check(p *parsed, wrong *problems) {
	for i := range v {
		if !v[i].set {
			if i < numRequired {
				wrong.add(attributeName(i), "missing")
			}
			continue
		}
		if fault := p.parse(i, v[i].text); fault != "" {
			wrong.add(attributeName(i), "%s: %s", fault, text.Quote(v[i].text))
		}
	}
}

// extensions are extension attributes as text.
type extensions []extension

type extension struct{ name, text string }

// extensionRoom is for the extensions that events usually have, on the stack of
// whoever needs their texts.
type extensionRoom [8]extension

// check adds every fault of the extensions to wrong.
func (x extensions) check(wrong *problems) {
	for _, e := range x {
		if !isExtensionName(e.name) {
			wrong.add("extension "+text.Quote(e.name), extensionNameRule)
		} else if fault := extensionFault(e.name, e.text); fault != "" {
			wrong.add(e.name, "%s: %s", fault, text.Quote(e.text))
		}
	}
}

// valuesOf returns the attributes of ctx as text.
func valuesOf(ctx *cloudevents.EventContextV1) (v values) {
	v.put(attrSpecVersion, cloudevents.CloudEventsVersionV1)
	v.put(attrID, ctx.ID)
	v.put(attrSource, uriText(&ctx.Source.URL))
	v.put(attrType, ctx.Type)
	if ctx.Subject != nil {
		v.put(attrSubject, *ctx.Subject)
	}
	if ctx.Time != nil {
		v.put(attrTime, formatTime(ctx.Time.Time))
	}
	if ctx.DataContentType != nil {
		v.put(attrContentType, *ctx.DataContentType)
	}
	if ctx.DataSchema != nil {
		v.put(attrSchema, ctx.DataSchema.String())
	}
	return v
}

// inspect returns the context of a valid event and its attributes, its extensions
// appended to x.
func inspect(e Event, x extensions) (*cloudevents.EventContextV1, values, extensions, error) {
	var wrong problems
	for name, err := range e.FieldErrors {
		wrong.add(name, "%s", err.Error())
	}
	ctx, ok := e.Context.(*cloudevents.EventContextV1)
	if !ok || ctx == nil {
		wrong.add("specversion", "not a CloudEvents %s event", cloudevents.CloudEventsVersionV1)
		return nil, values{}, nil, wrong.wrap(ErrInvalidEvent)
	}
	v := valuesOf(ctx)
	for name, value := range ctx.Extensions {
		text, ok := formatAttribute(value)
		if !ok && isExtensionName(name) {
			wrong.add(name, "%T is not a CloudEvents type", value)
			continue
		}
		x = append(x, extension{name, text})
	}
	v.check(new(parsed), &wrong)
	x.check(&wrong)
	return ctx, v, x, wrong.wrap(ErrInvalidEvent)
}

// parsed is a context together with what it points to: one allocation.
type parsed struct {
	ctx                  cloudevents.EventContextV1
	time                 types.Timestamp
	subject, contentType string
}

// event makes the event whose attributes were parsed into p.
func (p *parsed) event(v *values, extensions map[string]any, data []byte) Event {
	if v[attrSubject].set {
		p.ctx.Subject = &p.subject
	}
	if v[attrTime].set {
		p.ctx.Time = &p.time
	}
	if v[attrContentType].set {
		p.ctx.DataContentType = &p.contentType
	}
	p.ctx.Extensions = extensions
	return Event{Context: &p.ctx, DataEncoded: data}
}

// parse stores the value of attribute i, or says why it is not one. It is the
// one place that says what a legal attribute is, for publishing and receiving.
func (p *parsed) parse(i int, value string) (fault string) {
	if value == "" {
		return "empty"
	}
	if fault := textFault(value); fault != "" {
		return fault
	}
	switch i {
	case attrSpecVersion:
		if value != cloudevents.CloudEventsVersionV1 {
			return "unsupported version"
		}
	case attrID:
		p.ctx.ID = value
	case attrSource:
		u, ok := parseURI(value)
		if !ok {
			return "not a URI-reference"
		}
		p.ctx.Source.URL = u
	case attrType:
		p.ctx.Type = value
	case attrSubject:
		p.subject = value
	case attrTime:
		t, ok := parseTime(value)
		if !ok {
			return notATime
		}
		p.time.Time = t
	case attrContentType:
		if !isMediaType(value) {
			return "not a media type"
		}
		p.contentType = value
	case attrSchema:
		u, ok := parseURI(value)
		if !ok || !u.IsAbs() {
			return "not an absolute URI"
		}
		p.ctx.DataSchema = &types.URI{URL: u}
	}
	return ""
}
