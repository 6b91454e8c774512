package event

import (
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/internal/text"
)

// headerPrefix precedes the name of an attribute in a binary-mode header.
const headerPrefix = "ce-"

// headerContentType is sent in structured mode only: in binary mode the content
// type is an attribute like any other (ce-datacontenttype), so that data which
// happens to be a CloudEvent itself cannot change the mode of its message.
const headerContentType = "Content-Type"

// Encode makes the binary-mode message of an event, without a subject: every
// attribute is a header ce-<name>, percent-encoded ([EncodeAttribute]), and the
// data is the body, shared with e and not copied. It checks the event as
// [Validate] does and returns its error.
func Encode(e Event) (*nats.Msg, error) {
	var room extensionRoom
	_, v, x, err := inspect(e, room[:0])
	if err != nil {
		return nil, err
	}
	return encode(&v, x, e.Data(), ""), nil
}

// encode makes the binary-mode message of attributes, with an id unless it is empty.
func encode(v *values, x extensions, data []byte, id EventKey) *nats.Msg {
	most := numAttributes + len(x) + 1
	header := make(nats.Header, most)
	lines := make([]string, 0, most) // one array for all the one-element values
	put := func(name, value string) {
		lines = append(lines, value)
		header[name] = lines[len(lines)-1 : len(lines) : len(lines)]
	}
	for i := range v {
		if v[i].set {
			put(attributeHeaders[i], EncodeAttribute(v[i].text))
		}
	}
	for _, e := range x {
		put(extensionHeader(e.name), EncodeAttribute(e.text))
	}
	if id != "" {
		put(nats.MsgIdHdr, string(id))
	}
	return &nats.Msg{Header: header, Data: data}
}

// extensionHeader is the binary-mode header of an extension. Those that nearly
// every event has are not put together each time.
func extensionHeader(name string) string {
	switch name {
	case ExtKey:
		return headerPrefix + ExtKey
	case ExtCorrelation:
		return headerPrefix + ExtCorrelation
	case ExtCausation:
		return headerPrefix + ExtCausation
	}
	return headerPrefix + name
}

// Decode reads a message in binary or structured mode. The data of the event
// shares memory with data.
//
//   - A content type of application/cloudevents or application/cloudevents+json
//     (any case, blanks around it and parameters ignored) means structured; ce-
//     headers are ignored then. Batches and other event formats are refused:
//     all that [AnnouncesEvent] knows.
//   - Any ce- header means binary. Header names are case-insensitive, an
//     attribute may be repeated with one value but not with two. A Content-Type
//     stands in for a missing ce-datacontenttype.
//   - Neither header, but a JSON object as the body, means structured too, as
//     in earlier versions of the binding.
//
// Extension attributes have string values in binary mode; in structured mode
// they are string, bool or int32. Their canonical string form ([Extension]) is
// the same in both. An extension whose name is illegal is ignored, its value
// unread, and so is every header that is no attribute, Nats-* among them.
//
// Attribute values are CloudEvents strings, UTF-8 without control characters,
// and what the specification says of each attribute holds: anything else is
// refused. The text of the source is kept to the letter, as it is half of the
// event's identity; a time keeps its offset and nanoseconds.
//
// Every error matches [ErrDecode] and names each attribute at fault and why; it
// is the same on every delivery of a message. Nothing is made up: no id, no time.
func Decode(header nats.Header, data []byte) (Event, error) {
	var b binaryMessage
	b.read(header)
	media := mediaType(b.contentType)
	switch {
	case b.ambiguous:
		return Event{}, problems{"content-type: repeated with different values"}.wrap(ErrDecode)
	case media == mediaEvent, media == contentTypeStructured:
		return decodeStructured(data)
	case strings.HasPrefix(media, mediaEvent+"-batch"):
		return Event{}, problems{"content-type: batch is not supported"}.wrap(ErrDecode)
	case AnnouncesEvent(media):
		return Event{}, problems{"content-type: event format is not supported: " + text.Quote(media)}.wrap(ErrDecode)
	case b.attributes:
		return b.decode(data)
	case media == "" && isObject(data):
		return decodeStructured(data)
	default:
		return Event{}, problems{"not a CloudEvent: no ce- header and no content type application/cloudevents"}.wrap(ErrDecode)
	}
}

// mediaEvent begins the media types of messages whose body is the event.
const mediaEvent = "application/cloudevents"

// AnnouncesEvent reports whether a message of this content type has the event
// in its body, in some format, and its headers do not count: the media type
// begins with application/cloudevents, in any case, with blanks around it and
// parameters or without. It is the one rule for what is received and for what
// is sent: data of such a type must not be sent with it as the message's own.
func AnnouncesEvent(contentType string) bool {
	return strings.HasPrefix(mediaType(contentType), mediaEvent)
}

// binaryMessage is what the headers of a message say.
type binaryMessage struct {
	builder
	attributes  bool // there is a ce- header, legal or not
	contentType string
	ambiguous   bool // two different content types
}

// read takes in the headers, in whatever order the map gives them.
func (b *binaryMessage) read(header nats.Header) {
	for key, lines := range header {
		if len(key) >= len(headerPrefix) && strings.EqualFold(key[:len(headerPrefix)], headerPrefix) {
			b.attributes = true
			if name, ok := foldName(key[len(headerPrefix):]); ok {
				b.readAttribute(name, lines)
			}
		} else if strings.EqualFold(key, headerContentType) {
			b.readContentType(lines)
		}
	}
}

// readContentType takes in a Content-Type; an empty one counts as none.
func (b *binaryMessage) readContentType(lines []string) {
	for _, line := range lines {
		if line == "" {
			continue
		}
		b.ambiguous = b.ambiguous || b.contentType != "" && b.contentType != line
		b.contentType = line
	}
}

func (b *binaryMessage) readAttribute(name string, lines []string) {
	for _, line := range lines {
		value, err := DecodeAttribute(line)
		if err != nil {
			b.wrong.add(name, "not valid UTF-8: %s", text.Quote(line))
			continue
		}
		b.setText(name, value)
	}
}

func (b *binaryMessage) decode(data []byte) (Event, error) {
	if b.contentType != "" && !b.values[attrContentType].set {
		b.values.put(attrContentType, b.contentType)
	}
	return b.event(data)
}

// foldName returns name in lower case, and whether it is legal.
func foldName(name string) (string, bool) {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf { // ToLower knows letters that fold to ASCII
			return "", false
		}
	}
	name = strings.ToLower(name)
	return name, attributeIndex(name) >= 0 || isExtensionName(name)
}

// builder collects the attributes of a message that is being decoded.
type builder struct {
	values     values
	extensions map[string]any
	wrong      problems
}

// setText sets the attribute called name, which is legal.
func (b *builder) setText(name, value string) {
	if i := attributeIndex(name); i >= 0 {
		if old := b.values[i]; old.set && old.text != value {
			b.conflict(name)
			value = min(value, old.text) // whatever the order, the same further faults
		}
		b.values.put(i, value)
		return
	}
	if fault := extensionFault(name, value); fault != "" {
		b.wrong.add(name, "%s: %s", fault, text.Quote(value))
		return
	}
	if old, ok := b.extensions[name]; ok && old != value {
		b.conflict(name)
	}
	b.setExtension(name, value)
}

func (b *builder) setExtension(name string, value any) {
	if b.extensions == nil {
		b.extensions = make(map[string]any)
	}
	b.extensions[name] = value
}

func (b *builder) conflict(name string) { b.wrong.add(name, "repeated with different values") }

// event makes the event, or reports everything that is wrong with it.
func (b *builder) event(data []byte) (Event, error) {
	p := new(parsed)
	b.values.check(p, &b.wrong)
	if err := b.wrong.wrap(ErrDecode); err != nil {
		return Event{}, err
	}
	if len(data) == 0 {
		data = nil
	}
	return p.event(&b.values, b.extensions, data), nil
}
