package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxNormalised is how much of an error text counts for its fingerprint.
const maxNormalised = 512

// typeText is what event types look like, as order.placed.v1. They say what failed, so
// they stay.
const typeText = `(?:[a-z][a-z0-9_-]*\.)+v[0-9]+`

var (
	uuidPattern   = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	quotedPattern = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|\\B'[^']*'\\B|`[^`]*`")
	typePattern   = regexp.MustCompile("^" + typeText + "$")
	wordPattern   = regexp.MustCompile(`\b` + typeText + `\b|\b[A-Za-z0-9]*[0-9][A-Za-z0-9]*\b`)
	numberPattern = regexp.MustCompile(`^[0-9]+$`)
	hexPattern    = regexp.MustCompile(`^(?:0[xX][0-9a-fA-F]+|[0-9a-fA-F]{8,})$`)
)

// normalise replaces what varies from one occurrence of an error to the next
// by placeholders: UUIDs, quoted strings, numbers, hex, and words with digits. Event
// types stay.
func normalise(message string) string {
	s := strings.Join(strings.Fields(cut(strings.ToValidUTF8(message, "\uFFFD"), maxNormalised)), " ")
	s = uuidPattern.ReplaceAllLiteralString(s, "<uuid>")
	s = quotedPattern.ReplaceAllStringFunc(s, func(quoted string) string {
		if typePattern.MatchString(quoted[1 : len(quoted)-1]) {
			return quoted
		}
		return "<str>"
	})
	return wordPattern.ReplaceAllStringFunc(s, func(word string) string {
		switch {
		case strings.Contains(word, "."):
			return word
		case numberPattern.MatchString(word):
			return "<n>"
		case hexPattern.MatchString(word):
			return "<hex>"
		default:
			return "<id>"
		}
	})
}

// fingerprint names a kind of failure: the same error class, normalised text
// and event type give the same 12 hex digits, in every version and process.
func fingerprint(class, message, eventType string) string {
	sum := sha256.Sum256([]byte(class + "\x00" + eventType + "\x00" + normalise(message)))
	return hex.EncodeToString(sum[:6])
}
