package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/farandole/farandole/internal/text"
)

// ContentID returns an event id made from content, for producers that have no
// id of their own to publish under: SHA-256 over the RFC 8785 canonical JSON of
// data, in lower-case hex. A []byte or json.RawMessage is taken as JSON text,
// anything else is marshalled first. Key order, blanks and the way in which
// strings and numbers are written do not change the id.
//
// RFC 8785 numbers are IEEE 754 doubles. A number whose value would change in
// its canonical form (9007199254740993, say) is refused, because two different
// contents would get one id: send it as a string. It returns an error matching
// [ErrInvalidEvent] then, and when data is not JSON, repeats a member name or
// holds a Go string that is not UTF-8.
func ContentID(data any) (string, error) {
	body, err := jsonText(data)
	if err != nil {
		return "", fmt.Errorf("%w: content id: %w", ErrInvalidEvent, err)
	}
	canonical := jsontext.Value(bytes.Clone(body))
	if err := canonical.Canonicalize(); err != nil {
		return "", fmt.Errorf("%w: content id: %w", ErrInvalidEvent, err)
	}
	if number, ok := inexactNumber(body); ok {
		return "", fmt.Errorf("%w: content id: number %s is not kept by RFC 8785", ErrInvalidEvent, text.Quote(number))
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

func jsonText(data any) ([]byte, error) {
	switch data := data.(type) {
	case []byte:
		return data, nil
	case json.RawMessage:
		return data, nil
	default:
		return encodeData(data)
	}
}

// inexactNumber returns the first number of well-formed JSON whose value its
// canonical form does not keep.
func inexactNumber(text []byte) (string, bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return "", false // the end: the text is well-formed
		}
		number, ok := token.(json.Number)
		if !ok {
			continue
		}
		if _, exact := exactFloat(number.String()); !exact {
			return number.String(), true
		}
	}
}

// exactFloat returns the value of a JSON number, and whether a float64 keeps it:
// its shortest decimal form has the same value.
func exactFloat(number string) (float64, bool) {
	f, err := strconv.ParseFloat(number, 64)
	return f, err == nil && decimalOf(number) == decimalOf(strconv.FormatFloat(f, 'e', -1, 64))
}

// decimal is the number 0.digits * 10^exponent, the digits without zeros at
// either end.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// decimalOf reads a JSON number. Zero is decimal{}, of either sign.
func decimalOf(number string) decimal {
	mantissa, power, written := strings.Cut(strings.ToLower(number), "e")
	exponent, err := strconv.Atoi(power)
	switch {
	case !written:
		exponent = 0
	case err != nil:
		exponent = math.MaxInt32 // out of range: one that no double has
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return decimal{}
	}
	leading := len(whole) + len(fraction) - len(digits)
	return decimal{negative, strings.TrimRight(digits, "0"), exponent + len(whole) - leading}
}
