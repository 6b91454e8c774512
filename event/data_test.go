package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/farandole/farandole/event"
)

type address struct {
	Street string `json:"street"`
}

type cancelled struct {
	OrderID string    `json:"order_id"`
	Amount  int64     `json:"amount"`
	Address address   `json:"address"`
	Second  *address  `json:"second"`
	Items   []address `json:"items"`
	At      time.Time `json:"at"`
	Hash    [2]byte   `json:"hash"`
	Blob    []byte    `json:"blob"`
	Free    any       `json:"free"`
}

// with is an event with this data.
func with(data string) event.Event {
	var e event.Event
	e.DataEncoded = []byte(data)
	return e
}

func TestDefinition_Decode_refuses_what_two_readers_read_differently(t *testing.T) {
	t.Parallel()
	d := event.Define[cancelled]("order.cancelled.v1")
	for data, says := range map[string]string{
		`{"order_id":"A","order_id":"B"}`:         `duplicate object member name "order_id"`,
		`{"order_id":"A","order_\u0069d":"B"}`:    `duplicate object member name`,
		`{"order_id":"A","ORDER_ID":"B"}`:         "but for upper and lower case",
		`{"ORDER_ID":"B","order_id":"A"}`:         "but for upper and lower case",
		`{"Order_Id":"B"}`:                        "but for upper and lower case",
		`{"order_id":"A","unknown":1,"Amount":7}`: "but for upper and lower case",
		`{"address":{"Street":"x"}}`:              "but for upper and lower case",
		`{"items":[{"street":"x","street":"y"}]}`: `duplicate object member name "street"`,
		`{"unknown":{"a":1,"a":2}}`:               `duplicate object member name "a"`,
		`{"free":{"a":1,"a":2}}`:                  `duplicate object member name "a"`,
		"{\"order_id\":\"\xff\"}":                 "invalid UTF-8",
		"{\"unknown\":\"\xff\"}":                  "invalid UTF-8",
		`{"order_id":"\ud800"}`:                   "surrogate",
		`null`:                                    "data: null, want an object",
		`{"address":null}`:                        "/address: null, want an object",
		`{"items":[null]}`:                        "/items/0: null, want an object",
		`{"free":9007199254740993}`:               "/free: number \"9007199254740993\" is not kept",
		`{"free":{"list":[1,1e400]}}`:             "/free/list/1: number",
		`{"free":0.1234567890123456789}`:          "is not kept",
		`{"hash":[1]}`:                            "array",
		`{"hash":[1,2,3]}`:                        "array",
		`{"blob":"aGk\n="}`:                       "blob",
		`{"at":"2026-01-02T3:04:05Z"}`:            "time",
		`{"amount":"7"}`:                          "string",
		`{"amount":7.5}`:                          "7.5",
		`{"amount":9223372036854775808}`:          "9223372036854775808",
		`[]`:                                      "array",
		``:                                        "",
		`{}{}`:                                    "",
		`{"order_id":"A"`:                         "",
	} {
		got, err := d.Decode(with(" " + data + "\n"))
		if !errors.Is(err, event.ErrDecode) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "order.cancelled.v1") {
			t.Errorf("%s: %+v, %v; want ErrDecode that says %s", data, got, err, says)
		}
	}
}

func TestDefinition_Decode_accepts_what_is_plain(t *testing.T) {
	t.Parallel()
	d := event.Define[cancelled]("order.cancelled.v1")
	for data, want := range map[string]cancelled{
		`{}`:                {},
		`{"order_id":null}`: {},
		`{"second":null,"items":null,"free":null,"blob":null,"at":null}`:   {},
		`{"order_id":"A","added_later":{"x":[1,2,{}]},"order-id":"other"}`: {OrderID: "A"},
		`{"free":[1,-0.5,1e3,9007199254740992,"9007199254740993",true]}`:   {Free: []any{1.0, -0.5, 1000.0, 9007199254740992.0, "9007199254740993", true}},
		`{"order_id":"\ud83d\ude00\ufffd"}`:                                {OrderID: "😀\ufffd"},
		`{"amount":9007199254740993}`:                                      {Amount: 9007199254740993},
		`{"hash":[1,2],"blob":"aGk="}`:                                     {Hash: [2]byte{1, 2}, Blob: []byte("hi")},
	} {
		if got, err := d.Decode(with(" " + data + "\n")); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", data, got, err, want)
		}
	}
	if got, err := event.Define[any]("a.b.v1").Decode(with(`{"n":9007199254740993}`)); err == nil {
		t.Errorf("any: %v, want an error", got)
	}
	raw, err := event.Define[json.RawMessage]("a.b.v1").Decode(with(` {"b" : 1.0, "a":9007199254740993} `))
	if err != nil || strings.TrimSpace(string(raw)) != `{"b" : 1.0, "a":9007199254740993}` {
		t.Errorf("raw: %s, %v", raw, err)
	}
	number, err := event.Define[map[string]json.Number]("a.b.v1").Decode(with(`{"a":9007199254740993.10,"b":"7","c":null}`))
	if err != nil || number["a"] != "9007199254740993.10" || number["b"] != "7" || number["c"] != "" {
		t.Errorf("numbers: %v, %v", number, err)
	}
	if got, err := event.Define[json.Number]("a.b.v1").Decode(with(`"7x"`)); err == nil {
		t.Errorf("number: %v, want an error", got)
	}
}

// everything has a field of each kind that encoding/json treats in a way of its own.
type everything struct {
	Number   json.Number     `json:"number"`
	Quoted   json.Number     `json:"quoted,string"`
	Raw      json.RawMessage `json:"raw"`
	Duration time.Duration   `json:"duration"`
	Time     time.Time       `json:"time"`
	Maybe    time.Time       `json:"maybe,omitzero"`
	Bytes    []byte          `json:"bytes"`
	Array    [3]byte         `json:"array"`
	ByInt    map[int]string  `json:"by_int"`
	Pointer  *int            `json:"pointer,omitempty"`
	Int      int64           `json:"int,string"`
	Bool     bool            `json:"bool,string"`
	Text     string          `json:"text,string"`
	Float    float64         `json:"float"`
	Small    float32         `json:"small"`
	Any      any             `json:"any"`
	Slice    []string        `json:"slice"`
	Empty    []string        `json:"empty,omitempty"`
	Map      map[string]any  `json:"map"`
	Big      *big.Int        `json:"big"`
	Address  netip.Addr      `json:"address"`
	Untagged string
	address
	Nested struct{ X int } `json:"nested"`
	List   []address       `json:"list"`
	Hidden string          `json:"-"`
}

// TestDefinition_keeps_the_form_of_encoding_json: ids made from content, and
// what consumers in other languages parse, do not change.
func TestDefinition_keeps_the_form_of_encoding_json(t *testing.T) {
	t.Parallel()
	d := event.Define[everything]("a.b.v1")
	text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune("<>&\u2028\u2029\x00\x1f\ufffd\\\"/ué"))))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int().Draw(t, "n")
		v := everything{
			Number: "12.50", Quoted: "7", Raw: json.RawMessage(`{ "b":1.0, "a": "<" }`), Duration: time.Duration(n),
			Time: time.Unix(int64(n%1e9), int64(n)).In(time.FixedZone("", n%720*60)), Bytes: rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
			Array: [3]byte{1, 2, byte(n)}, ByInt: map[int]string{3: "x", n: text.Draw(t, "value")}, Pointer: &n, Int: int64(n), Bool: n%2 == 0,
			Text: text.Draw(t, "text"), Float: rapid.Float64().Draw(t, "float"), Small: float32(n) / 3,
			Any: map[string]any{text.Draw(t, "key"): []any{nil, true, 0.5, text.Draw(t, "any")}}, Big: new(big.Int).Lsh(big.NewInt(int64(n)), 80),
			Address: netip.AddrFrom4([4]byte{1, 2, 3, byte(n)}), Untagged: text.Draw(t, "untagged"), address: address{text.Draw(t, "street")},
		}
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		e, err := d.New("k", v).Seal(event.Identity{ID: "a", Source: "/s"})
		if err != nil || !bytes.Equal(e.Data(), want) {
			t.Fatalf("%s, %v\nwant %s", e.Data(), err, want)
		}
		var plain everything
		if err := json.Unmarshal(want, &plain); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Decode(e); err != nil || !reflect.DeepEqual(got, plain) {
			t.Fatalf("%s: %v\n%+v\nwant %+v", want, err, got, plain)
		}
	})
}

func TestDefinition_New_refuses_what_Decode_would(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]event.Draft{
		"not UTF-8":       event.Define[address]("a.b.v1").New("k", address{"caf\xe9"}),
		"not UTF-8, any":  event.Define[any]("a.b.v1").New("k", map[string]any{"a\xff": 1}),
		"repeated member": event.Define[json.RawMessage]("a.b.v1").New("k", json.RawMessage(`{"a":1,"a":2}`)),
		"half surrogate":  event.Define[json.RawMessage]("a.b.v1").New("k", json.RawMessage(`"\ud800"`)),
	} {
		if e, err := d.Seal(event.Identity{ID: "a", Source: "/s"}); !errors.Is(err, event.ErrInvalidEvent) {
			t.Errorf("%s: %s, %v; want ErrInvalidEvent", name, e.Data(), err)
		}
	}
	e, err := event.Define[json.RawMessage]("a.b.v1").New("k", json.RawMessage(`"\ufffd"`)).Seal(event.Identity{ID: "a", Source: "/s"})
	if err != nil || string(e.Data()) != `"\ufffd"` {
		t.Errorf("an escape of the producer's own: %s, %v", e.Data(), err)
	}
}

func BenchmarkDefinition_Decode(b *testing.B) {
	d := event.Define[cancelled]("order.cancelled.v1")
	for name, data := range map[string]string{
		"known":   `{"order_id":"ord-7f3a","amount":2500,"address":{"street":"x"},"items":[{"street":"a"},{"street":"b"}]}`,
		"unknown": `{"order_id":"ord-7f3a","amount":2500,"address":{"street":"x"},"items":[{"street":"a"},{"street":"b"}],"new":1}`,
	} {
		b.Run(name, func(b *testing.B) {
			e := with(data)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Decode(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What a type of Go is called, and that there is one, is of no use to whoever has
// to mend the data.
func TestDataOfAnotherKindIsRefusedInTheWordsOfJSON(t *testing.T) {
	t.Parallel()
	type item struct {
		Quantity int64 `json:"quantity"`
	}
	type cart struct {
		Name  string `json:"name"`
		Items []item `json:"items"`
	}
	for body, want := range map[string]string{
		`{"name":["Bob"]}`:               "/name is an array, want a string",
		`{"items":[{"quantity":"two"}]}`: "/items/0/quantity is a string, want a whole number of 64 bits",
		`{"items":[{"quantity":1.5}]}`:   "/items/0/quantity is number 1.5, want a whole number of 64 bits",
		`[]`:                             "data is an array, want an object",
	} {
		if _, err := event.Define[cart]("a.b.v1").Decode(with(body)); err == nil || !strings.HasSuffix(err.Error(), "data of a.b.v1: "+want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}
