package event

// The few JSON tools of structured mode. They work on the raw bytes, so that
// data stays as it was written; encoding/json checks the grammar.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNesting bounds how deep the JSON of a structured message is nested.
const maxNesting = 1000

// checkObject reports why body is not one JSON object that members can read.
func checkObject(body []byte) error {
	var syntax json.RawMessage
	switch trimmed := bytes.TrimLeft(body, " \t\r\n"); {
	case bytes.HasPrefix(body, []byte("\xEF\xBB\xBF")):
		return errors.New("begins with a byte order mark")
	case !utf8.Valid(body):
		return errors.New("not valid UTF-8")
	case nesting(body) > maxNesting:
		return fmt.Errorf("nested deeper than %d", maxNesting)
	case len(trimmed) > 0 && trimmed[0] == '[':
		return errors.New("batch is not supported")
	case !json.Valid(body):
		return json.Unmarshal(body, &syntax)
	case trimmed[0] != '{':
		return errors.New("not a JSON object")
	default:
		return nil
	}
}

// isObject reports whether body could be a JSON object.
func isObject(body []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
}

// members yields the raw names and values of a JSON object that is known to be
// well-formed, as slices of it.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		i := skipSpace(object, 0) + 1
		for {
			i = skipSpace(object, i)
			if object[i] == '}' {
				return
			}
			end := valueEnd(object, i)
			name := object[i:end]
			i = skipSpace(object, skipSpace(object, end)+1) // past the colon
			end = valueEnd(object, i)
			if !yield(name, object[i:end:end]) {
				return
			}
			if i = skipSpace(object, end); object[i] == ',' {
				i++
			}
		}
	}
}

// valueEnd returns where the well-formed value that begins at i ends.
func valueEnd(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch c := b[i]; c {
		case '"':
			i = stringEnd(b, i) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				return i // of a number or literal before it
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// stringEnd returns where the string that begins at i ends, or the end of b.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// nesting returns how deep b, well-formed or not, nests arrays and objects.
func nesting(b []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// unescape returns the text of a well-formed JSON string, and false if it has a
// surrogate without its other half, which is no character.
func unescape(raw []byte) (string, bool) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	if hasLoneSurrogate(raw) {
		return "", false
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

func hasLoneSurrogate(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if i++; raw[i] != 'u' {
			continue
		}
		first := hex4(raw[i+1:])
		i += 4
		if !utf16.IsSurrogate(first) {
			continue
		}
		rest := raw[i+1:]
		if !bytes.HasPrefix(rest, []byte(`\u`)) || utf16.DecodeRune(first, hex4(rest[2:])) == utf8.RuneError {
			return true
		}
		i += 6
	}
	return false
}

// hex4 returns the value of four hex digits.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r = r<<4 | rune(unhex(c))
	}
	return r
}
