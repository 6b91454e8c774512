package event

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/internal/text"
)

// controlPrefix begins the names of headers that the server obeys: one of them
// can erase a stream (Nats-Rollup), have a message vanish (Nats-TTL) or publish
// it elsewhere (Nats-Schedule-Target).
const controlPrefix = "nats-"

// maxTombstone is how long what cancels a timer may stay.
const maxTombstone = time.Minute

var timerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// IsControl reports whether a header of this name is between publisher and
// server, in any case of letters: Nats-Msg-Id, Nats-Rollup and so on. It is never
// taken from a message that somebody else has written.
func IsControl(name string) bool {
	return len(name) >= len(controlPrefix) && strings.EqualFold(name[:len(controlPrefix)], controlPrefix)
}

// AdmitEvent checks a message that somebody else has written and that is to be
// published as it is: it has to be an event on its own subject,
// events.<type>.<key>, under its event key as the message id, and with no other
// control header. The error matches [ErrNotAdmitted] and says what would be right.
func (n Names) AdmitEvent(m *nats.Msg) error {
	if root := n.dotted("events."); !strings.HasPrefix(m.Subject, root) {
		return fmt.Errorf("%w: subject %s: want %s<type>.<key>", ErrNotAdmitted, text.Quote(m.Subject), root)
	}
	control := slices.DeleteFunc(controlOf(m), func(name string) bool { return name == nats.MsgIdHdr })
	switch len(control) {
	case 0:
		return n.isEventOn(m.Subject, m)
	case 1:
		return fmt.Errorf("%w: header %s is for the server, not for an event", ErrNotAdmitted, text.Quote(control[0]))
	default:
		return fmt.Errorf("%w: headers %s are for the server, not for an event", ErrNotAdmitted, text.Quote(strings.Join(control, ", ")))
	}
}

// controlOf returns the names of m's control headers, sorted: what is refused is
// told in the same words each time.
func controlOf(m *nats.Msg) (names []string) {
	for name := range m.Header {
		if IsControl(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// AdmitTimer checks a message that sets or cancels a timer of c, whose event is
// held to what [Names.AdmitEvent] says. The error matches [ErrNotAdmitted].
func (n Names) AdmitTimer(c Consumer, m *nats.Msg) error {
	rest, ok := strings.CutPrefix(m.Subject, n.dotted("timer.")+string(c)+".")
	name, key, _ := strings.Cut(rest, ".")
	if !ok || !timerName.MatchString(name) || key == "" || strings.Contains(key, ".") {
		return fmt.Errorf("%w: subject %s: want timer.%s.<name>.<key>", ErrNotAdmitted, text.Quote(m.Subject), c)
	}
	control := controlOf(m)
	only := func(names ...string) bool {
		for _, name := range names {
			if len(m.Header[name]) != 1 || m.Header[name][0] == "" {
				return false
			}
		}
		return len(control) == len(names)
	}
	switch {
	case only(nats.MsgIdHdr, jetstream.ScheduleHeader, jetstream.ScheduleTargetHeader):
		at, ok := strings.CutPrefix(m.Header[jetstream.ScheduleHeader][0], "@at ")
		if _, err := time.Parse(time.RFC3339Nano, at); !ok || err != nil {
			return fmt.Errorf("%w: timer: header %s: want one instant", ErrNotAdmitted, jetstream.ScheduleHeader)
		}
		target := m.Header[jetstream.ScheduleTargetHeader][0]
		if !strings.HasSuffix(target, "."+key) {
			return fmt.Errorf("%w: timer: header %s: %s has another key than %s", ErrNotAdmitted, jetstream.ScheduleTargetHeader, text.Quote(target), text.Quote(m.Subject))
		}
		subject, ok := strings.CutPrefix(target, n.dotted("due."))
		if !ok {
			return fmt.Errorf("%w: timer: header %s: %s: want %s", ErrNotAdmitted, jetstream.ScheduleTargetHeader, text.Quote(target), text.Quote(n.DueSubject(target)))
		}
		return n.isEventOn(n.dotted(subject), m)
	case only(nats.MsgIdHdr, jetstream.MsgRollup, jetstream.MsgTTLHeader):
		lifetime, err := time.ParseDuration(m.Header[jetstream.MsgTTLHeader][0])
		if m.Header[jetstream.MsgRollup][0] == jetstream.MsgRollupSubject && err == nil && lifetime > 0 && lifetime <= maxTombstone && len(m.Data) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: timer: headers %s: want those that set a timer or cancel one", ErrNotAdmitted, strings.Join(control, ", "))
}

// isEventOn checks that m is an event for this subject, and has its message id.
func (n Names) isEventOn(subject string, m *nats.Msg) error {
	e, err := Decode(m.Header, m.Data)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
	}
	t, err := n.TypeOf(e.Type())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
	}
	if token, ok := strings.CutPrefix(subject, strings.TrimSuffix(n.TypeFilter(t), ">")); !ok || !isKeyToken(token) || n.CheckSubject(subject, e) != nil {
		return fmt.Errorf("%w: subject %s: an event of this type and key belongs on %s", ErrNotAdmitted, text.Quote(subject), text.Quote(n.EventSubject(t, PartitionKey(e))))
	}
	if id, want := m.Header[nats.MsgIdHdr], string(EventKeyOf(e)); len(id) != 1 || id[0] != want {
		return fmt.Errorf("%w: message id %s: want the event key, which is %s for source %s and id %s",
			ErrNotAdmitted, text.Quote(strings.Join(id, ", ")), want, text.Quote(e.Source()), text.Quote(e.ID()))
	}
	return nil
}

// isKeyToken reports whether s can be what [EscapeKey] returns.
func isKeyToken(s string) bool {
	for i := range len(s) {
		if !isTokenByte(s[i]) && s[i] != '=' {
			return false
		}
	}
	return s != "" && len(s) <= 3*maxKeyBytes
}
