package event

// What structured mode needs of JSON, on the raw bytes, so that data stays as it
// was written. encoding/json checks the grammar.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxNesting bounds how deep the JSON of a structured message is nested.
const maxNesting = 1000

// jsonSpace is what may stand between the tokens of JSON.
const jsonSpace = " \t\r\n"

// checkObject reports why body is not one JSON object that members can read.
func checkObject(body []byte) error {
	var syntax json.RawMessage
	switch trimmed := bytes.TrimLeft(body, jsonSpace); {
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
	return bytes.HasPrefix(bytes.TrimLeft(body, jsonSpace), []byte("{"))
}

// members yields the raw names and values of a JSON object that is known to be
// well-formed, as slices of it. A name may come again.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		d := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		next := func() []byte {
			value, err := d.ReadValue()
			if err != nil {
				return nil
			}
			end := int(d.InputOffset())
			return object[end-len(value) : end : end]
		}
		if _, err := d.ReadToken(); err != nil {
			return
		}
		for d.PeekKind() == jsontext.KindString {
			if name, value := next(), next(); !yield(name, value) {
				return
			}
		}
	}
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

// unescape returns the text of a well-formed JSON string, and false if it has a
// surrogate without its other half, which is no character.
func unescape(raw []byte) (string, bool) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), true
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	return string(text), err == nil
}
