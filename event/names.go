package event

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/farandole/farandole/internal/text"
)

// Type is an event type, <domain>.<event>.v<N>, as in "order.placed.v1".
type Type string

// Key is what an event is about, usually the saga's order id. Any non-empty
// CloudEvents string (UTF-8 without control characters) is a legal key;
// [EscapeKey] makes it a subject token.
type Key string

// Consumer is a service's durable name, [a-z][a-z0-9-]{0,31}.
type Consumer string

// EventKey identifies one event, 32 lower-case base32 characters made from
// source and id. It is the message id at the server and the key in ledgers.
type EventKey string

var (
	typePrefix      = regexp.MustCompile(`^([a-z][a-z0-9_-]*\.)+$`)
	consumerPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	prefixPattern   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const (
	// maxKeyBytes is the longest key that stands in a subject itself, of up to
	// three times as many bytes when escaped; a longer one is replaced by its hash.
	maxKeyBytes = 128
	// maxTypeBytes keeps a subject well within the server's line limit of 4,096 bytes.
	maxTypeBytes = 255
)

// Validate returns an error matching [ErrInvalidType] unless t is a legal event
// type of at most 255 bytes, without a reverse-DNS prefix. A legal type is three
// subject tokens: it cannot hold blanks, wildcards or line ends, nor reach $JS.
func (t Type) Validate() error {
	if len(t) > maxTypeBytes {
		return fmt.Errorf("%w: %s: longer than %d bytes", ErrInvalidType, text.Quote(string(t)), maxTypeBytes)
	}
	if !isType(string(t)) {
		return fmt.Errorf("%w: %s: want <domain>.<event>.v<N>, each token [a-z][a-z0-9_-]*", ErrInvalidType, text.Quote(string(t)))
	}
	return nil
}

// IsPattern reports whether t stands for many types: it ends in "*".
func (t Type) IsPattern() bool { return strings.HasSuffix(string(t), "*") }

// ValidatePattern returns an error matching [ErrInvalidType] unless t is a legal type, or
// a pattern: "order.*" for all types of a domain, "order.placed.*" for all versions of
// one, "*" for all.
func (t Type) ValidatePattern() error {
	if !t.IsPattern() {
		return t.Validate()
	}
	of := strings.TrimSuffix(string(t), "*")
	if of == "" || strings.HasSuffix(of, ".") && (isType(of+"event.v1") || isType(of+"v1")) {
		return nil
	}
	return fmt.Errorf(`%w: %s: want a pattern like "order.*", "order.placed.*" or "*"`, ErrInvalidType, text.Quote(string(t)))
}

// isType reports whether s matches [a-z][a-z0-9_-]*\.[a-z][a-z0-9_-]*\.v[1-9][0-9]{0,4}.
// It is asked several times an event, and a regexp takes its time.
func isType(s string) bool {
	domain, rest, _ := strings.Cut(s, ".")
	e, version, _ := strings.Cut(rest, ".")
	return isTypeToken(domain) && isTypeToken(e) && isVersion(version)
}

func isTypeToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if inner := c >= '0' && c <= '9' || c == '_' || c == '-'; (c < 'a' || c > 'z') && (i == 0 || !inner) {
			return false
		}
	}
	return s != ""
}

func isVersion(s string) bool {
	digits, ok := strings.CutPrefix(s, "v")
	return ok && digits != "" && len(digits) <= 5 && digits[0] != '0' && strings.Trim(digits, "0123456789") == ""
}

// Validate returns an error matching [ErrInvalidConsumer] unless c is a legal
// consumer name.
func (c Consumer) Validate() error {
	if !consumerPattern.MatchString(string(c)) {
		return fmt.Errorf("%w: %s: want [a-z][a-z0-9-]{0,31}", ErrInvalidConsumer, text.Quote(string(c)))
	}
	return nil
}

// NewEventKey returns the event key for an event's source and id: base32 of the
// first 20 bytes of SHA-256(source, 0x00, id). Neither can contain a NUL, so no
// two pairs are hashed from the same bytes.
func NewEventKey(source, id string) EventKey {
	var buf [256]byte
	b := append(buf[:0], source...)
	b = append(b, 0)
	return hashKey(append(b, id...))
}

// EventKeyAt returns the event key of a message that cannot be decoded: it
// is made from the stream that holds the message, its sequence there and when
// it was stored by the server's clock, so every redelivery has the same one.
// The time tells it from the message that had the sequence in a stream of the
// same name before.
func EventKeyAt(stream string, sequence uint64, stored time.Time) EventKey {
	var buf [256]byte
	b := append(buf[:0], stream...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint64(b, sequence)
	return hashKey(binary.BigEndian.AppendUint64(b, uint64(stored.UnixNano())))
}

func hashKey(b []byte) EventKey {
	sum := sha256.Sum256(b)
	var key [32]byte
	base32Lower.Encode(key[:], sum[:20])
	return EventKey(key[:])
}

// EscapeKey writes k, which is not empty, as one subject token: bytes outside
// [A-Za-z0-9_-] become =XX (upper-case hex); a key longer than 128 bytes becomes
// =h and its SHA-256 in base32. Different keys have different tokens.
func EscapeKey(k Key) string {
	if len(k) > maxKeyBytes {
		sum := sha256.Sum256([]byte(k))
		return "=h" + base32Lower.EncodeToString(sum[:])
	}
	escapes := 0
	for i := range len(k) {
		if !isTokenByte(k[i]) {
			escapes++
		}
	}
	if escapes == 0 {
		return string(k)
	}
	var sb strings.Builder
	sb.Grow(len(k) + 2*escapes)
	for i := range len(k) {
		if c := k[i]; isTokenByte(c) {
			sb.WriteByte(c)
		} else {
			sb.WriteByte('=')
			sb.WriteByte(upperHex[c>>4])
			sb.WriteByte(upperHex[c&15])
		}
	}
	return sb.String()
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// StateBucket is the short name of the bucket that remembers which documents of
// the event stream have to exist (package state).
const StateBucket = "state"

// Names makes every subject, stream and bucket name of one Farandole system.
// Prefix lets several systems share one NATS account: with Prefix "shop" the
// subjects begin with "shop." and streams and buckets with "shop-". The zero
// Names has no prefix.
type Names struct {
	// Prefix is empty or [a-z][a-z0-9-]{0,31}. Defaults to "" (no prefix).
	Prefix string
	// TypePrefix is a reverse-DNS prefix of event types, with its final dot
	// ("com.acme."), stripped for the subject. Defaults to "".
	TypePrefix string
}

// Validate returns an error matching [ErrInvalidName] unless both prefixes are legal.
func (n Names) Validate() error {
	if n.Prefix != "" && !prefixPattern.MatchString(n.Prefix) {
		return fmt.Errorf("%w: prefix %q: want [a-z][a-z0-9-]{0,31}", ErrInvalidName, n.Prefix)
	}
	if n.TypePrefix != "" && !typePrefix.MatchString(n.TypePrefix) {
		return fmt.Errorf("%w: type prefix %q: want reverse-DNS tokens with a final dot, as in \"com.acme.\"", ErrInvalidName, n.TypePrefix)
	}
	return nil
}

// EventsStream is the stream that holds events, redrives, ledger marks and state.
func (n Names) EventsStream() string { return n.dashed("EVENTS") }

// TimersStream is the stream in which timers wait, and from which the event
// stream takes what is due.
func (n Names) TimersStream() string { return n.dashed("TIMERS") }

// DLQStream is the stream that holds dead letters.
func (n Names) DLQStream() string { return n.dashed("DLQ") }

// Bucket is the name of one of the system's KV buckets, as in Bucket("dedup").
func (n Names) Bucket(name string) string { return n.dashed(name) }

// EventSubject is the subject on which an event is published: events.<type>.<key>.
// The type may have the reverse-DNS prefix. Neither is checked. Where the stream
// has it says [Names.Stored].
func (n Names) EventSubject(t Type, k Key) string {
	if n.Prefix == "" {
		return "events." + n.bare(string(t)) + "." + EscapeKey(k)
	}
	return n.Prefix + ".events." + n.bare(string(t)) + "." + EscapeKey(k)
}

// TypeFilter is the subject filter for all events of one type, also for those that
// were stored before there were partitions.
func (n Names) TypeFilter(t Type) string {
	return n.dotted("events.") + n.bare(string(t)) + ".>"
}

// EventsFilter is the subject filter for all events.
func (n Names) EventsFilter() string { return n.dotted("events.>") }

// RedriveSubject is where the message that was stored on subject goes when it
// is replayed for one consumer only: redrive.<consumer>.<subject without "events.">,
// with the partition that the subject has. A subject that is itself a redrive of that consumer is returned unchanged.
func (n Names) RedriveSubject(c Consumer, subject string) string {
	prefix := n.dotted("redrive.") + string(c) + "."
	if strings.HasPrefix(subject, prefix) {
		return subject
	}
	return prefix + strings.TrimPrefix(subject, n.dotted("events."))
}

// RedriveFilter is the subject filter for all redrives of one consumer; an empty one means any.
func (n Names) RedriveFilter(c Consumer) string {
	return n.dotted("redrive.") + orAny(string(c)) + ".>"
}

// IsRedrive reports whether subject is a redrive of consumer c.
func (n Names) IsRedrive(c Consumer, subject string) bool {
	rest, ok := strings.CutPrefix(subject, n.dotted("redrive."))
	name, _, more := strings.Cut(rest, ".")
	return ok && more && name == string(c)
}

// TimerSubject is where a consumer's timer waits: timer.<consumer>.<name>.<key>.
func (n Names) TimerSubject(c Consumer, name string, k Key) string {
	return n.dotted("timer.") + string(c) + "." + name + "." + EscapeKey(k)
}

// DueSubject is where the server puts a timer's message when its time has
// come, so that it gets to subject in the event stream: due.<subject>. The
// subject is that of an event or a redrive.
func (n Names) DueSubject(subject string) string {
	return n.dotted("due.") + strings.TrimPrefix(subject, n.dotted(""))
}

// IsTimer reports whether a subject is that of a timer.
func (n Names) IsTimer(subject string) bool { return strings.HasPrefix(subject, n.dotted("timer.")) }

// TimersFilter is the subject filter for a consumer's timers of one name; an empty part means any.
func (n Names) TimersFilter(c Consumer, name string) string {
	return n.dotted("timer.") + orAny(string(c)) + "." + orAny(name) + ".*"
}

// LedgerSubject is where the ledger in the event stream keeps what it knows of a consumer
// on no partition, under k, as in "durable".
func (n Names) LedgerSubject(c Consumer, k EventKey) string {
	return n.dotted("ledger.") + string(c) + "." + string(k)
}

// StateSubject is where a consumer keeps the in-stream document of a key.
func (n Names) StateSubject(c Consumer, k Key) string {
	return n.dotted("state.") + string(c) + "." + EscapeKey(k)
}

// StateFilter matches all in-stream documents of a consumer.
func (n Names) StateFilter(c Consumer) string { return n.dotted("state.") + string(c) + ".>" }

// DeadLetterSubject is dlq.<consumer>.<reason>.<event key>.
func (n Names) DeadLetterSubject(c Consumer, reason string, k EventKey) string {
	return n.dotted("dlq.") + string(c) + "." + reason + "." + string(k)
}

// DeadLetterFilter is the subject filter for dead letters; an empty part means any.
func (n Names) DeadLetterFilter(c Consumer, reason string, k EventKey) string {
	return n.DeadLetterSubject(Consumer(orAny(string(c))), orAny(reason), EventKey(orAny(string(k))))
}

// Root adds the system's prefix to a subject root, as in Root("ledger.>").
func (n Names) Root(subject string) string { return n.dotted(subject) }

// TypeOf returns an event's type without the configured reverse-DNS prefix. A
// type without the prefix is accepted. The error matches [ErrInvalidType].
func (n Names) TypeOf(t string) (Type, error) {
	bare := Type(n.bare(t))
	if err := bare.Validate(); err != nil {
		return "", err
	}
	return bare, nil
}

// bare strips the type prefix. A type of two dots has none, even if its domain
// looks like it.
func (n Names) bare(t string) string {
	if n.TypePrefix == "" || strings.Count(t, ".") <= 2 {
		return t
	}
	return strings.TrimPrefix(t, n.TypePrefix)
}

func (n Names) dashed(s string) string {
	if n.Prefix == "" {
		return s
	}
	return n.Prefix + "-" + s
}

func (n Names) dotted(s string) string {
	if n.Prefix == "" {
		return s
	}
	return n.Prefix + "." + s
}

func orAny(s string) string {
	if s == "" {
		return "*"
	}
	return s
}
