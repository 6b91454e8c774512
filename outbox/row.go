package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpguts"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/text"
)

// Status says how far a row is.
type Status string

// The statuses.
const (
	Pending    Status = "PENDING"     // to be published, at once or at its time
	Processing Status = "PROCESSING"  // a relay publishes it, until its lease ends
	Published  Status = "PUBLISHED"   // a stream has stored it
	DeadLetter Status = "DEAD_LETTER" // parked: it could not be published
)

// row is a message as the table has it.
type row struct {
	id        int64
	messageID string // the Nats-Msg-Id
	subject   string
	key       string // the rows of one key are published in order
	headers   string // JSON object, without the message id
	data      []byte
	attempts  int
	story     string // JSON list of event.Attempt
	age       time.Duration
	consumer  event.Consumer // whose step has written it; "" if no consumer's step has
}

// errUnreadable is the fault of a row, written by somebody else, that is no message.
var errUnreadable = errors.New("outbox: unreadable row")

// newRow returns the row of a message. A message without an id gets a random one.
// The key is the last token of the subject, which a saga's events, timers and
// documents share.
func newRow(m *nats.Msg) (row, error) {
	r := row{messageID: m.Header.Get(nats.MsgIdHdr), subject: m.Subject, key: m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], data: m.Data}
	if r.messageID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return row{}, fmt.Errorf("outbox: random id: %w", err)
		}
		r.messageID = id.String()
	}
	if r.data == nil {
		r.data = []byte{}
	}
	headers := make(map[string]values, len(m.Header))
	for name, v := range m.Header {
		if name != nats.MsgIdHdr {
			headers[name] = v
		}
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return row{}, fmt.Errorf("outbox: headers: %w", err)
	}
	r.headers = string(text)
	return r, nil
}

// admitted returns the message of a row that may be published. Anybody may have written
// a row, unless the table names a consumer: then a step of that consumer has. Only steps
// set timers. Every other row has to be an event, of one of types if there are any and no
// step has written it. Errors match errUnreadable or [event.ErrNotAdmitted].
func (r row) admitted(names event.Names, types []event.Type) (*nats.Msg, error) {
	m, err := r.message()
	switch {
	case err != nil:
		return nil, err
	case r.consumer != "" && strings.HasPrefix(r.subject, names.Root("timer.")):
		err = names.AdmitTimer(r.consumer, m)
	default:
		err = names.AdmitEvent(m)
		if err == nil && r.consumer == "" && len(types) > 0 && !slices.ContainsFunc(types, func(t event.Type) bool { return names.TypeFilter(t) == r.about()+".>" }) {
			err = fmt.Errorf("%w: subject %s: this relay is for rows of %v", event.ErrNotAdmitted, r.subject, types)
		}
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// message is the inverse of newRow. The error matches errUnreadable and says what is
// wrong with a row that somebody else has written. Without this check the server would
// end the connection, or the client leave headers out.
func (r row) message() (*nats.Msg, error) {
	headers, err := parseHeaders(r.headers)
	if err != nil {
		return nil, fmt.Errorf("%w: column headers: %w", errUnreadable, err)
	}
	headers[nats.MsgIdHdr] = []string{r.messageID}
	if err := checkHeaders(headers); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return &nats.Msg{Subject: r.subject, Header: headers, Data: r.data}, nil
}

func parseHeaders(object string) (nats.Header, error) {
	headers, ok := parseFlat(object)
	if !ok {
		var all map[string]values
		if err := json.Unmarshal([]byte(object), &all); err != nil {
			return nil, err
		}
		headers = make(nats.Header, len(all)+1)
		for name, v := range all {
			headers[name] = v
		}
	}
	return headers, nil
}

// parseFlat reads an object of plain strings, as in {"Nats-Msg-Id":"1","ce-type":"a.v1"},
// as almost all rows have. To decode any JSON takes as long as all else that is done
// with a row. For other objects ok is false.
func parseFlat(object string) (headers nats.Header, ok bool) {
	if !strings.HasPrefix(object, `{"`) || strings.ContainsRune(object, '\\') || !utf8.ValidString(object) {
		return nil, false
	}
	n := strings.Count(object, `":"`)
	headers = make(nats.Header, n+1)
	all := make([]string, 0, n)
	for rest := object; rest != "}"; {
		name, value, found := strings.Cut(rest[1:], `":"`) // behind { or ,
		if !found || len(name) == 0 || name[0] != '"' {
			return nil, false
		}
		if value, rest, found = strings.Cut(value, `"`); !found || rest != "}" && !strings.HasPrefix(rest, `,"`) {
			return nil, false
		}
		if name = name[1:]; !httpguts.ValidHeaderFieldName(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return nil, false
		}
		all = append(all, value)
		headers[name] = all[len(all)-1 : len(all) : len(all)]
	}
	return headers, true
}

func checkHeaders(headers nats.Header) error {
	for name, values := range headers {
		legal := httpguts.ValidHeaderFieldName(name)
		for _, v := range values {
			legal = legal && !strings.ContainsAny(v, "\r\n")
		}
		if !legal {
			return fmt.Errorf("%q is not a header", text.Cut(name, 64))
		}
	}
	return nil
}

// about returns the subject without the key, as in events.order.placed.v1.
func (r row) about() string { return r.subject[:max(strings.LastIndexByte(r.subject, '.'), 0)] }

// values are those of a header: in JSON a string, or a list of strings if there are several.
type values []string

func (v values) MarshalJSON() ([]byte, error) {
	if len(v) == 1 {
		return json.Marshal(v[0])
	}
	return json.Marshal([]string(v))
}

func (v *values) UnmarshalJSON(data []byte) error {
	var one *string // nil for null, which is no value
	if err := json.Unmarshal(data, &one); err == nil && one != nil {
		*v = values{*one}
		return nil
	}
	var many []*string
	if err := json.Unmarshal(data, &many); err != nil || len(many) == 0 || slices.Contains(many, nil) {
		return errors.New("a value is neither a string nor a list of strings")
	}
	*v = make(values, len(many))
	for i, one := range many {
		(*v)[i] = *one
	}
	return nil
}
