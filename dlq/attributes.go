package dlq

import (
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// structuredAttributes returns the attributes that people look for, of an
// event whose headers do not tell them; nil for a binary-mode event and for
// what cannot be decoded.
func structuredAttributes(failed *nats.Msg) map[string]string {
	if attribute(failed.Header, "specversion") != "" && !isStructured(failed.Header) {
		return nil
	}
	e, err := event.Decode(failed.Header, failed.Data)
	if err != nil {
		return nil
	}
	return map[string]string{
		"type":               e.Type(),
		"id":                 e.ID(),
		"source":             e.Source(),
		event.ExtKey:         event.Extension(e, event.ExtKey),
		event.ExtCorrelation: event.Extension(e, event.ExtCorrelation),
	}
}

func isStructured(h nats.Header) bool {
	for name, values := range h {
		if strings.EqualFold(name, "content-type") && len(values) > 0 && event.AnnouncesEvent(values[0]) {
			return true
		}
	}
	return false
}

// attribute reads one CloudEvents attribute from headers, as far as it can be
// read: a letter with damaged attributes is listed all the same.
func attribute(h nats.Header, name string) string {
	if v := text(h, prefixAttribute+name); v != "" {
		return v
	}
	if v := text(h, "ce-"+name); v != "" {
		return v
	}
	for key, values := range h {
		if len(values) > 0 && hasPrefixFold(key, "ce-") && strings.EqualFold(key[3:], name) {
			return decode(values[0])
		}
	}
	return ""
}

// keyOfSubject reads the key from an event or redrive subject of this system; "" for other
// subjects, and for a token of digits, which may be the number that a folding stream has
// put there. Of a long key the subject has a hash.
func keyOfSubject(n event.Names, subject string) string {
	if typeOfSubject(n, subject) == "" {
		return ""
	}
	token := subject[strings.LastIndexByte(subject, '.')+1:]
	if strings.Trim(token, "0123456789") == "" {
		return ""
	}
	key, err := url.PathUnescape(strings.ReplaceAll(token, "=", "%"))
	if err != nil {
		return token
	}
	return key
}

// typeOfSubject reads the event type from an event or redrive subject of this
// system; "" for other subjects.
func typeOfSubject(n event.Names, subject string) string {
	subject = n.Published(subject)
	rest, ok := strings.CutPrefix(subject, n.Root("events."))
	if !ok {
		if rest, ok = strings.CutPrefix(subject, n.Root("redrive.")); !ok {
			return ""
		}
		_, rest, _ = strings.Cut(rest, ".")
	}
	tokens := strings.Split(rest, ".")
	if len(tokens) != 4 {
		return ""
	}
	t := event.Type(strings.Join(tokens[:3], "."))
	if t.Validate() != nil {
		return ""
	}
	return string(t)
}
