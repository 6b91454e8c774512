package event

import (
	"cmp"
	"fmt"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
)

// Event is a CloudEvent 1.0, the model of cloudevents/sdk-go.
type Event = cloudevents.Event

// Extension attributes that Farandole gives a meaning (docs/contract.md).
const (
	// ExtCorrelation names the saga.
	ExtCorrelation = "correlationid"
	// ExtCausation is the id of the event that caused this one.
	ExtCausation = "causationid"
	// ExtKey is what the event is about; it defaults to the correlation.
	ExtKey = "partitionkey"
	// ExtExpiry is when the event loses its meaning, a time like the attribute
	// time ([Expiry]).
	ExtExpiry = "expirytime"
	// ExtTraceparent and ExtTracestate are the distributed-tracing extension.
	ExtTraceparent = "traceparent"
	ExtTracestate  = "tracestate"
)

// ContentTypeJSON is the datacontenttype of data encoded by a [Definition].
const ContentTypeJSON = "application/json"

// Definition ties an event type to the Go type of its data, which travels as JSON.
type Definition[T any] struct {
	typ Type
}

// Define returns the definition of an event type, as in
//
//	var Placed = event.Define[PlacedData]("order.placed.v1")
//
// It never panics: an illegal type is reported, as [ErrInvalidType], when the
// definition is registered with a consumer or one of its drafts is sealed.
func Define[T any](t Type) Definition[T] { return Definition[T]{typ: t} }

// Type returns the event type.
func (d Definition[T]) Type() Type { return d.typ }

// New drafts an event about key. Data is encoded at once as JSON that
// [Definition.Decode] accepts: a string that is not UTF-8 and a repeated member
// are errors. An error is kept and returned when the draft is sealed.
func (d Definition[T]) New(key Key, data T) Draft {
	body, err := encodeData(data)
	if err != nil {
		err = fmt.Errorf("%w: %s: encode data: %w", ErrInvalidEvent, d.typ, err)
	}
	return Draft{Type: d.typ, Key: key, ContentType: ContentTypeJSON, Data: body, err: err}
}

// Decode reads an event's data, whatever the event's type is. It returns an
// error matching [ErrDecode] when the data is not JSON or does not fit T, and
// when it says one thing to one reader and another thing to the next (docs/contract.md,
// "Typed data"). Members that T does not have are ignored, so that producers can
// add some.
func (d Definition[T]) Decode(e Event) (T, error) {
	data, err := decodeData[T](e.Data())
	if err != nil {
		return data, fmt.Errorf("%w: data of %s: %w", ErrDecode, d.typ, err)
	}
	return data, nil
}

// Draft is an event without identity: what a handler returns. Whoever seals it
// gives it id, source and time: the consumer derives the id from the event
// that caused it, Bus.Seal of package bus takes [Draft.ID] or makes a random one.
type Draft struct {
	// Type is the event type. Required.
	Type Type
	// Key is what the event is about, the partitionkey. Required.
	Key Key
	// ID is the event id for Bus.Seal. A consumer ignores it: the ids of
	// what a handler returns are derived. Defaults to a random UUIDv7.
	ID string
	// Subject is the CloudEvents subject attribute. Defaults to none.
	Subject string
	// Correlation names the saga. Defaults to the causing event's, or Key.
	Correlation string
	// ContentType is the datacontenttype of Data. Defaults to none.
	ContentType string
	// Data is the payload, sent as it is.
	Data []byte
	// Extensions are further extension attributes. The partition key,
	// correlation and causation are refused here: they have fields. A trace
	// given here replaces the one of the identity. Defaults to none.
	Extensions map[string]string

	err error
}

// WithID returns the draft with an event id: a request that is sent again with the same id
// is the same event.
func (d Draft) WithID(id string) Draft {
	d.ID = id
	return d
}

// Identity is what sealing adds to a draft.
type Identity struct {
	ID, Source  string    // required; together they identify the event
	Time        time.Time // the zero time means no time attribute
	Correlation string    // used when the draft has none; defaults to the key
	Causation   string    // id of the causing event, empty for the first of a saga
	Traceparent string
	Tracestate  string
	TypePrefix  string // reverse-DNS prefix put before the draft's type, with its final dot
}

// Seal makes the draft an event, one that [Validate] accepts. It returns
// an error matching [ErrInvalidType] or [ErrInvalidEvent] that names what is
// wrong. The event shares the draft's data and makes nothing up: giving an id
// and a time is the caller's part.
func (d Draft) Seal(id Identity) (Event, error) {
	var room extensionRoom
	p := new(parsed)
	v, x, err := d.attributes(id, p, room[:0])
	if err != nil {
		return Event{}, err
	}
	all := make(map[string]any, len(x))
	for _, e := range x {
		all[e.name] = e.text
	}
	return p.event(&v, all, d.Data), nil
}

// attributes returns those of the sealed draft, its extensions appended to x, and
// writes what they mean into p.
func (d Draft) attributes(id Identity, p *parsed, x extensions) (values, extensions, error) {
	var v values
	if d.err != nil {
		return v, x, d.err
	}
	if err := d.Type.Validate(); err != nil {
		return v, x, err
	}
	// An empty key would fall back to the correlation, and an order id that
	// somebody forgot to set would go unnoticed.
	if d.Key == "" {
		return v, x, fmt.Errorf("%w: %s: empty key", ErrInvalidEvent, d.Type)
	}
	for _, name := range [...]string{ExtKey, ExtCorrelation, ExtCausation} {
		if _, ok := d.Extensions[name]; ok {
			return v, x, fmt.Errorf("%w: %s: extension %q has a field of its own", ErrInvalidEvent, d.Type, name)
		}
	}
	v.put(attrSpecVersion, cloudevents.CloudEventsVersionV1)
	v.put(attrID, id.ID)
	v.put(attrSource, id.Source)
	v.put(attrType, id.TypePrefix+string(d.Type))
	if !id.Time.IsZero() {
		v.put(attrTime, formatTime(id.Time))
	}
	if d.Subject != "" {
		v.put(attrSubject, d.Subject)
	}
	if d.ContentType != "" {
		v.put(attrContentType, d.ContentType)
	}
	x = append(x,
		extension{ExtKey, string(d.Key)},
		extension{ExtCorrelation, cmp.Or(d.Correlation, id.Correlation, string(d.Key))})
	for _, e := range [...]extension{{ExtCausation, id.Causation}, {ExtTraceparent, id.Traceparent}, {ExtTracestate, id.Tracestate}} {
		_, replaced := d.Extensions[e.name]
		if e.name == ExtTracestate { // it belongs to its trace
			_, other := d.Extensions[ExtTraceparent]
			replaced = replaced || other
		}
		if e.text != "" && !replaced {
			x = append(x, e)
		}
	}
	for name, value := range d.Extensions {
		x = append(x, extension{name, value})
	}
	var wrong problems
	v.check(p, &wrong)
	x.check(&wrong)
	return v, x, wrong.wrap(ErrInvalidEvent)
}

// EventKeyOf returns the event key of a decoded event.
func EventKeyOf(e Event) EventKey {
	ctx, ok := e.Context.(*cloudevents.EventContextV1)
	if !ok {
		return NewEventKey(e.Source(), e.ID())
	}
	return NewEventKey(uriText(&ctx.Source.URL), ctx.ID)
}

// PartitionKey returns what the event is about: partitionkey, else
// correlationid, else its id. It is not empty for an event that was decoded or
// passes [Validate].
func PartitionKey(e Event) Key {
	return Key(cmp.Or(Extension(e, ExtKey), Extension(e, ExtCorrelation), e.ID()))
}

// Extension returns an extension attribute in its canonical string form, or ""
// if e has none of that name.
func Extension(e Event, name string) string {
	ctx, ok := e.Context.(*cloudevents.EventContextV1)
	if !ok {
		return ""
	}
	text, _ := formatAttribute(ctx.Extensions[name])
	return text
}

// Expiry returns the event's expirytime; ok is false if it has none.
func Expiry(e Event) (at time.Time, ok bool) {
	return parseTime(Extension(e, ExtExpiry))
}

// newID returns a random, time-ordered event id.
func newID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("event: random id: %w", err)
	}
	return id.String(), nil
}
