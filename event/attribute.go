package event

import (
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/farandole/farandole/internal/text"
)

// EncodeAttribute percent-encodes an attribute value for a header: space, '"',
// '%' and every byte outside U+0021..U+007E, as upper-case hex. The result is
// printable ASCII, so no value can break out of its header line. Values that
// need no encoding are returned as they are.
func EncodeAttribute(s string) string {
	escapes := 0
	for i := range len(s) {
		if needsEscape(s[i]) {
			escapes++
		}
	}
	if escapes == 0 {
		return s
	}
	var sb strings.Builder
	sb.Grow(len(s) + 2*escapes)
	for i := range len(s) {
		if c := s[i]; needsEscape(c) {
			sb.WriteByte('%')
			sb.WriteByte(upperHex[c>>4])
			sb.WriteByte(upperHex[c&15])
		} else {
			sb.WriteByte(c)
		}
	}
	return sb.String()
}

// DecodeAttribute undoes [EncodeAttribute], and reads what other producers
// write: a double-quoted value is unquoted, then percent-decoding is done
// exactly once, with hex of either case and needless escapes. A '%' that two
// hex digits do not follow stands for itself. It returns an error matching
// [ErrDecode] when the result is not valid UTF-8. Characters that CloudEvents
// forbids in a string are left to [Decode] to refuse.
func DecodeAttribute(s string) (string, error) {
	v := s
	if strings.HasPrefix(v, `"`) {
		v = unquote(v)
	}
	if strings.IndexByte(v, '%') >= 0 {
		v = percentDecode(v)
	}
	if !utf8.ValidString(v) {
		return "", fmt.Errorf("%w: not valid UTF-8: %s", ErrDecode, text.Quote(v))
	}
	return v, nil
}

const upperHex = "0123456789ABCDEF"

func needsEscape(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }

// unquote returns the content of a quoted-string (RFC 9110, 5.6.4); anything
// that is not one from end to end is returned as it is.
func unquote(s string) string {
	var sb strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' && i == len(s)-1:
			return sb.String()
		case c == '"':
			return s
		case c == '\\' && i+1 < len(s):
			i++
			sb.WriteByte(s[i])
		default:
			sb.WriteByte(c)
		}
	}
	return s
}

func percentDecode(s string) string {
	var sb strings.Builder
	sb.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			sb.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		} else {
			sb.WriteByte(s[i])
		}
	}
	return sb.String()
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// unhex returns the value of a hex digit.
func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// textFault says why s is not a CloudEvents string, or "" if it is one: UTF-8
// without control characters and noncharacters.
func textFault(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			ascii = false
			break
		}
	}
	if ascii {
		return ""
	}
	if !utf8.ValidString(s) {
		return "not valid UTF-8"
	}
	for _, r := range s {
		if unicode.IsControl(r) || r&0xFFFE == 0xFFFE || r >= 0xFDD0 && r <= 0xFDEF {
			return fmt.Sprintf("character %U is not allowed", r)
		}
	}
	return ""
}

// isExtensionName reports whether name is a legal name of an extension
// attribute: [a-z0-9]+, neither an attribute of the specification nor "data".
func isExtensionName(name string) bool {
	if name == "" || name == "data" || attributeIndex(name) >= 0 {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// extensionFault says why text is not a value of the extension called name, or
// "" if it is one.
func extensionFault(name, text string) string {
	if fault := textFault(text); fault != "" || name != ExtExpiry {
		return fault
	}
	if _, ok := parseTime(text); !ok {
		return notATime
	}
	return ""
}

const extensionNameRule = "the name of an extension is [a-z0-9]+ and not one of the specification's"

// formatAttribute returns the canonical string form of an attribute value, and
// whether its type is one of CloudEvents. Times keep their offset, which
// types.Format drops.
func formatAttribute(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return types.FormatBool(v), true
	case int32:
		return types.FormatInteger(v), true
	case []byte:
		return types.FormatBinary(v), true
	case types.URI:
		return v.String(), true
	case types.URIRef:
		return v.String(), true
	case types.Timestamp:
		return formatTime(v.Time), true
	default:
		return "", false
	}
}

// formatTime writes t in RFC 3339 with its offset and nanoseconds. RFC 3339
// has no seconds in offsets; such a time is written in UTC.
func formatTime(t time.Time) string {
	if _, offset := t.Zone(); offset%60 != 0 {
		t = t.UTC()
	}
	return t.Format(time.RFC3339Nano)
}

const notATime = "not an RFC 3339 time"

// parseTime reads RFC 3339, 't' and 'z' in either case. What is finer than a
// nanosecond is cut, and a leap second (:60) is refused: time.Time has none.
func parseTime(s string) (time.Time, bool) {
	s = strings.ToUpper(s)
	if !isRFC3339(s) {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339, s)
	return t, err == nil
}

// isRFC3339 checks the form, which time.Parse (and UnmarshalText) is lax about:
// one-digit hours, a decimal comma, any offset. The ranges are left to it.
func isRFC3339(s string) bool {
	const dateTime = "0000-00-00T00:00:00"
	if len(s) < len(dateTime) || !hasForm(s[:len(dateTime)], dateTime) {
		return false
	}
	zone := s[len(dateTime):]
	if fraction, ok := strings.CutPrefix(zone, "."); ok {
		zone = strings.TrimLeft(fraction, "0123456789")
		if len(zone) == len(fraction) {
			return false
		}
	}
	if zone == "Z" {
		return true
	}
	return strings.IndexAny(zone, "+-") == 0 && hasForm(zone[1:], "00:00") && zone[1:3] < "24" && zone[4:] < "60"
}

// hasForm reports whether s is form with any digit for each 0.
func hasForm(s, form string) bool {
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		if digit := s[i] >= '0' && s[i] <= '9'; digit != (form[i] == '0') || !digit && s[i] != form[i] {
			return false
		}
	}
	return true
}

// parseURI reads a URI-reference so that its String is s to the letter:
// url.URL changes some (HTTP://x, a#, blanks), and the source is half of an
// event's identity.
func parseURI(s string) (url.URL, bool) {
	if isPlainPath(s) {
		return url.URL{Path: s}, true
	}
	u, err := url.Parse(s)
	if err != nil {
		return url.URL{}, false
	}
	switch {
	case u.String() == s:
		return *u, true
	case u.Scheme == "":
		return url.URL{Opaque: s}, true
	default:
		n := len(u.Scheme)
		return url.URL{Scheme: s[:n], Opaque: s[n+1:]}, true
	}
}

// uriText is u.String(), without its work for a plain path.
func uriText(u *url.URL) string {
	if isPlainPath(u.Path) && *u == (url.URL{Path: u.Path}) {
		return u.Path
	}
	return u.String()
}

// isPlainPath reports whether s is a path that url.URL keeps as it is, the
// usual source: "order-service" or "/shops/7".
func isPlainPath(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isTokenByte(c) && c != '/' && c != '.' {
			return false
		}
	}
	return !strings.HasPrefix(s, "//")
}

// isMediaType reports whether s is a media type of RFC 2046.
func isMediaType(s string) bool {
	if s == ContentTypeJSON {
		return true
	}
	media, _, err := mime.ParseMediaType(s)
	return err == nil && strings.Contains(media, "/")
}

// mediaType returns the lower-case type/subtype of a content type.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// isJSON reports whether data of a content type is JSON; no content type means JSON.
func isJSON(contentType string) bool {
	media := mediaType(contentType)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// problems are what is wrong with one event, a text an attribute.
type problems []string

func (p *problems) add(attribute, format string, args ...any) {
	*p = append(*p, attribute+": "+fmt.Sprintf(format, args...))
}

// wrap makes one error of them, or nil of none. The text does not depend on
// the order in which a map gave them: dead letters are grouped by it.
func (p problems) wrap(sentinel error) error {
	if len(p) == 0 {
		return nil
	}
	slices.Sort(p)
	return fmt.Errorf("%w: %s", sentinel, strings.Join(slices.Compact(p), "; "))
}
