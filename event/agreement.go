package event

import (
	"fmt"
	"strings"

	"github.com/farandole/farandole/internal/text"
)

// CheckSubject returns an error matching [ErrDecode], which tells both, when e
// does not agree with the subject of its message: an event subject of this
// system, or the redrive of one. Filters, permissions and per-key order go by
// the subject, handlers by the event; one that says two things is neither.
//
//   - The type tokens are the event's type without the reverse-DNS prefix.
//   - The key token, which is the last one, is the event's partitionkey, escaped,
//     if the event has one. A token of digits alone may be what a folding stream
//     has put in the key's place, so it is not compared.
//
// Between the two stands the partition, of digits alone, where the stream has put
// one in.
//
// Any other subject, of a stream that is not Farandole's for instance, is free.
func (n Names) CheckSubject(subject string, e Event) error {
	rest, ok := n.eventTokens(subject)
	if !ok {
		return nil
	}
	t, _, token := splitTokens(rest)
	if t != n.bare(e.Type()) {
		return fmt.Errorf("%w: type: %s on subject %s", ErrDecode, text.Quote(e.Type()), text.Quote(subject))
	}
	key := Extension(e, ExtKey)
	if key == "" || token == EscapeKey(Key(key)) || isPartition(token) {
		return nil
	}
	return fmt.Errorf("%w: %s: %s on subject %s", ErrDecode, ExtKey, text.Quote(key), text.Quote(subject))
}

// eventTokens returns what stands behind "events." or "redrive.<consumer>.";
// ok is false for other subjects.
func (n Names) eventTokens(subject string) (tokens string, ok bool) {
	subject, ok = strings.CutPrefix(subject, n.dotted(""))
	if !ok {
		return "", false
	}
	if tokens, ok = strings.CutPrefix(subject, "events."); ok {
		return tokens, true
	}
	if tokens, ok = strings.CutPrefix(subject, "redrive."); ok {
		_, tokens, _ = strings.Cut(tokens, ".")
	}
	return tokens, ok
}

// isPartition reports whether a token can be the number of a partition.
func isPartition(token string) bool {
	return token != "" && len(token) <= 10 && strings.Trim(token, "0123456789") == ""
}
