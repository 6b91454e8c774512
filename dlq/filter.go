package dlq

import (
	"cmp"
	"strings"
	"time"

	"github.com/farandole/farandole/event"
)

// Filter chooses letters. Every field that is set must match; the zero Filter
// matches all.
type Filter struct {
	Consumer event.Consumer
	Reason   string // one of bus.Reason…
	Class    string // error class of the last attempt
	// Type is the event type, with or without the configured reverse-DNS prefix.
	Type event.Type
	// Key is what the event is about (partitionkey, else correlationid).
	Key         event.Key
	Fingerprint string
	// Text is part of the last error's text, in any case.
	Text string
	// After and Before bound when the letter was stored, by the server's
	// clock: After <= stored < Before. "Older than an hour" is Before an hour ago.
	After, Before time.Time
}

// Matches reports whether the filter chooses e.
func (f Filter) Matches(n event.Names, e Entry) bool {
	trim := func(t string) string { return strings.TrimPrefix(t, n.TypePrefix) }
	return (f.Consumer == "" || f.Consumer == e.Consumer) &&
		(f.Reason == "" || f.Reason == e.Reason) &&
		(f.Class == "" || f.Class == e.Class) &&
		(f.Type == "" || trim(string(f.Type)) == trim(e.Type)) &&
		(f.Key == "" || f.Key == e.Key) &&
		(f.Fingerprint == "" || f.Fingerprint == e.Fingerprint) &&
		(f.After.IsZero() || !e.Stored.Before(f.After)) &&
		(f.Before.IsZero() || e.Stored.Before(f.Before)) &&
		(f.Text == "" || strings.Contains(strings.ToLower(e.Error), strings.ToLower(f.Text)))
}

// bySubject reports whether the subject alone tells what matches.
func (f Filter) bySubject() bool { return f == Filter{Consumer: f.Consumer, Reason: f.Reason} }

// subject is the narrowest subject filter for the chosen letters.
func (f Filter) subject(n event.Names) string {
	if f.Reason == "" {
		return consumerSubject(n, f.Consumer)
	}
	return n.Root("dlq." + cmp.Or(string(f.Consumer), "*") + "." + f.Reason + ".>")
}

// consumerSubject filters the letters of one consumer, or of all.
func consumerSubject(n event.Names, c event.Consumer) string {
	if c == "" {
		return n.Root("dlq.>")
	}
	return n.Root("dlq." + string(c) + ".>")
}

// validate refuses what would be read as a wildcard.
func (f Filter) validate() error {
	if f.Consumer != "" && !isToken(string(f.Consumer)) {
		return invalid("consumer", string(f.Consumer))
	}
	if f.Reason != "" && !isToken(f.Reason) {
		return invalid("reason", f.Reason)
	}
	return nil
}
