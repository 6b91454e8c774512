package event_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"testing"

	"github.com/farandole/farandole/event"
)

func contentID(t *testing.T, data any) string {
	t.Helper()
	id, err := event.ContentID(data)
	if err != nil {
		t.Fatalf("ContentID(%s): %v", data, err)
	}
	return id
}

func TestContentIDIsTheSameForTheSameContent(t *testing.T) {
	t.Parallel()
	type order struct {
		Name   string `json:"name"`
		Amount int    `json:"amount"`
	}
	want := contentID(t, order{"a<é>", 100})
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(want) {
		t.Errorf("id %q", want)
	}
	for _, same := range []any{
		map[string]any{"amount": 100, "name": "a<é>"},
		[]byte(`{"name":"a<é>","amount":100}`),
		json.RawMessage(" {\n\"amount\" : 1.00e2, \"name\" : \"a\\u003c\\u00e9>\" } "),
	} {
		if got := contentID(t, same); got != want {
			t.Errorf("%s: id %s, want %s", same, got, want)
		}
	}
	for _, other := range []string{`{"name":"a","amount":100}`, `{"name":"a<é>","amount":"100"}`, `[]`, `null`, `"x"`} {
		if contentID(t, []byte(other)) == want {
			t.Errorf("%s has the same id", other)
		}
	}
}

func TestContentIDRefusesNumbersThatWouldChange(t *testing.T) {
	t.Parallel()
	for _, number := range []string{
		"9007199254740993", "-9007199254740993", "18446744073709551615", "0.1000000000000000055", "1e-400", "1e400", "1e-99999999999999999999",
		"123456789012345678901234567890",
	} {
		if id, err := event.ContentID([]byte(`{"a":[1,{"b":` + number + `}]}`)); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("%s: %q, %v, want ErrInvalidEvent", number, id, err)
		}
	}
	if _, err := event.ContentID(uint64(1<<53 + 1)); !errors.Is(err, event.ErrInvalidEvent) {
		t.Errorf("uint64: %v", err)
	}
	for _, number := range []string{
		"0", "-0", "0.0", "0e99999999999999999999", "1.0", "9007199254740992", "9007199254740994", "-9007199254740991", "0.1", "1e23", "1E+2",
		"0.00001", "5e-324", "1.7976931348623157e308", "100", "1234567890123456",
	} {
		contentID(t, []byte(number))
	}
	if contentID(t, []byte("1e2")) != contentID(t, []byte("100.0")) {
		t.Error("one number, two ids")
	}
	contentID(t, []byte(`{"9007199254740993":"9007199254740993"}`)) // a name and a string, not numbers
}

func TestContentIDRefusesWhatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", " ", "{", `{"a":1,"a":1}`, `"\ud800"`, "\"\xff\"", "01", "1 2", "\xEF\xBB\xBF1"} {
		if id, err := event.ContentID([]byte(text)); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("%q: %q, %v, want ErrInvalidEvent", text, id, err)
		}
	}
	if _, err := event.ContentID(map[string]string{"city": "caf\xe9"}); !errors.Is(err, event.ErrInvalidEvent) {
		t.Errorf("a string that is not UTF-8: %v", err)
	}
	if _, err := event.ContentID(make(chan int)); !errors.Is(err, event.ErrInvalidEvent) {
		t.Errorf("channel: %v", err)
	}
	if _, err := event.ContentID([]byte(nil)); !errors.Is(err, event.ErrInvalidEvent) {
		t.Errorf("nil: %v", err)
	}
}
