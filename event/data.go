package event

import (
	"bytes"
	"encoding"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/farandole/farandole/internal/text"
)

// encodeData writes data as JSON, in the form of encoding/json. It refuses what
// decodeData would: what an unmarshaled text of its own, a json.RawMessage for
// instance, repeats, and strings that are not UTF-8, which encoding/json
// replaces.
func encodeData(data any) ([]byte, error) {
	body, err := stdjson.Marshal(data)
	if err != nil {
		return nil, err
	}
	if !jsontext.Value(body).IsValid() {
		return nil, syntaxFault(body)
	}
	if bytes.Contains(body, []byte(`\ufffd`)) { // written for a byte that is not UTF-8; or somebody's own escape
		if _, err := json.Marshal(data, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false)); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// decodeData reads JSON as encoding/json does, but never guesses: it refuses a
// repeated member, a member that has a field's name but for upper and lower
// case, text that is not UTF-8 or holds half of a surrogate pair, null in the
// place of a struct, an array of another length than its Go array, a time that
// is not RFC 3339, and a number that an empty interface, a float64 then, cannot hold.
func decodeData[T any](body []byte) (T, error) {
	var data T
	rules := strict
	if bytes.Contains(body, []byte("null")) {
		rules = strictNull
	}
	if json.Unmarshal(body, &data, rules, json.RejectUnknownMembers(true)) == nil {
		return data, nil // every member is known: the usual case
	}
	var exact, folded T
	if err := json.Unmarshal(body, &exact, rules); err != nil {
		if fault := syntaxFault(body); fault != nil { // it says where
			return exact, fault
		}
		return exact, kindFault(err)
	}
	err := json.Unmarshal(body, &folded, rules, json.MatchCaseInsensitiveNames(true))
	if err != nil || !reflect.DeepEqual(exact, folded) {
		return exact, errFolded
	}
	return exact, nil
}

var errFolded = errors.New("a member has the name of a field but for upper and lower case")

// strict are the rules of decodeData, on top of how encoding/json fits JSON to
// Go types, which event data have relied on.
var strict = json.JoinOptions( //nolint:gochecknoglobals // a constant
	jsonv1.DefaultOptionsV1(),
	jsontext.AllowDuplicateNames(false),
	jsontext.AllowInvalidUTF8(false),
	json.MatchCaseInsensitiveNames(false),
	jsonv1.ParseBytesWithLooseRFC4648(false),
	jsonv1.ParseTimeWithLooseRFC3339(false),
	jsonv1.UnmarshalArrayFromAnyLength(false),
	json.WithUnmarshalers(json.JoinUnmarshalers(json.UnmarshalFromFunc(decodeFloat), json.UnmarshalFromFunc(decodeNumber))),
)

// strictNull are the rules for JSON in which there may be a null. Asking before each
// value takes as long as all the rest.
var strictNull = json.JoinOptions(strict, json.WithUnmarshalers( //nolint:gochecknoglobals // a constant
	json.JoinUnmarshalers(json.UnmarshalFromFunc(decodeFloat), json.UnmarshalFromFunc(decodeNumber), json.UnmarshalFromFunc(refuseNull)),
))

// refuseNull is asked before any value is read.
func refuseNull(d *jsontext.Decoder, into any) error {
	switch into.(type) {
	case json.Unmarshaler, json.UnmarshalerFrom, encoding.TextUnmarshaler:
		return errors.ErrUnsupported
	}
	if d.PeekKind() != jsontext.KindNull || reflect.TypeOf(into).Elem().Kind() != reflect.Struct {
		return errors.ErrUnsupported
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	return fmt.Errorf("%s: null, want an object", place(d))
}

func decodeFloat(d *jsontext.Decoder, into *any) error {
	if d.PeekKind() != jsontext.KindNumber {
		return errors.ErrUnsupported
	}
	number, err := d.ReadValue()
	if err != nil {
		return err
	}
	f, exact := exactFloat(string(number))
	if !exact {
		return fmt.Errorf("%s: number %s is not kept by float64: give it a field of type int64 or json.Number", place(d), text.Quote(string(number)))
	}
	*into = f
	return nil
}

// decodeNumber reads what encoding/json reads into its Number.
func decodeNumber(d *jsontext.Decoder, into *stdjson.Number) error {
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	if value.Kind() == jsontext.KindNull {
		return nil
	}
	number := []byte(value)
	if value.Kind() == jsontext.KindString {
		if number, err = jsontext.AppendUnquote(nil, value); err != nil {
			return err
		}
	}
	if jsontext.Value(number).Kind() != jsontext.KindNumber || !jsontext.Value(number).IsValid() {
		return fmt.Errorf("%s: %s, want a number", place(d), text.Quote(string(value)))
	}
	*into = stdjson.Number(number)
	return nil
}

// place names what a decoder has read last, for an error.
func place(d *jsontext.Decoder) string {
	if at := d.StackPointer(); at != "" {
		return string(at)
	}
	return "data"
}

// kindFault says which value has another kind than its field, without Go's words.
func kindFault(err error) error {
	var wrong *jsonv1.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Err != nil {
		return err
	}
	at := "data"
	if wrong.Field != "" {
		at = "/" + strings.ReplaceAll(wrong.Field, ".", "/")
	}
	found := wrong.Value // as in "number 1.5"
	switch found {
	case "array", "object":
		found = "an " + found
	case "string", "bool":
		found = "a " + found
	}
	return fmt.Errorf("%s is %s, want %s", at, found, text.JSONKind(wrong.Type))
}

// syntaxFault says where body is not JSON, or repeats a member; nil if it is well.
func syntaxFault(body []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	if _, err := d.ReadValue(); err != nil {
		return err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
