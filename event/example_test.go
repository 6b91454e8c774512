package event_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/event"
)

type OrderPlaced struct {
	Total    int64  `json:"total"`
	Currency string `json:"currency"`
}

var Placed = event.Define[OrderPlaced]("order.placed.v1")

func ExampleDefine() {
	draft := Placed.New("ord-7f3a", OrderPlaced{Total: 2500, Currency: "EUR"})
	e, err := draft.Seal(event.Identity{
		ID:     "0197f3a2-5c1e-7000-8000-000000000001",
		Source: "order",
		Time:   time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := Placed.Decode(e)
	fmt.Println(e.Type(), event.PartitionKey(e), data.Total, data.Currency, err)
	// Output: order.placed.v1 ord-7f3a 2500 EUR <nil>
}

func ExampleDraft_Seal() {
	draft := event.Draft{Type: "order.placed.v1", Key: "ord-7f3a", Extensions: map[string]string{"trace-id": "1"}}
	_, err := draft.Seal(event.Identity{ID: "1", Source: "order"})
	fmt.Println(errors.Is(err, event.ErrInvalidEvent))
	fmt.Println(err)
	// Output:
	// true
	// event: invalid event: extension "trace-id": the name of an extension is [a-z0-9]+ and not one of the specification's
}

func ExampleEncode() {
	e, err := event.Draft{
		Type: "order.placed.v1", Key: "ord-7f3a", Subject: `café "7"`,
		ContentType: event.ContentTypeJSON, Data: []byte(`{"total":9007199254740993}`),
	}.Seal(event.Identity{ID: "1", Source: "order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg, err := event.Encode(e)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(msg.Header.Get("ce-subject"), string(msg.Data))
	decoded, err := event.Decode(msg.Header, msg.Data)
	fmt.Println(decoded.Subject(), string(decoded.Data()), err)
	// Output:
	// caf%C3%A9%20%227%22 {"total":9007199254740993}
	// café "7" {"total":9007199254740993} <nil>
}

func ExampleEncodeStructured() {
	e, err := event.Draft{
		Type: "order.placed.v1", Key: "ord-7f3a", ContentType: event.ContentTypeJSON, Data: []byte(`{"total":1.0}`),
	}.Seal(event.Identity{ID: "1", Source: "order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg, err := event.EncodeStructured(e)
	fmt.Println(string(msg.Data), err)
	// Output: {"specversion":"1.0","id":"1","source":"order","type":"order.placed.v1","datacontenttype":"application/json","correlationid":"ord-7f3a","partitionkey":"ord-7f3a","data":{"total":1.0}} <nil>
}

func ExampleDecode() {
	e, err := event.Decode(nil, []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"order.placed.v1","data":[1.0]}`))
	fmt.Println(e.ID(), string(e.Data()), err)

	_, err = event.Decode(nil, []byte(`{"specversion":"1.0","source":"/s","type":"order.placed.v1","time":"1719999999"}`))
	fmt.Println(errors.Is(err, event.ErrDecode))
	fmt.Println(err)
	// Output:
	// 1 [1.0] <nil>
	// true
	// event: cannot decode: id: missing; time: not an RFC 3339 time: "1719999999"
}

func ExampleContentID() {
	a, err := event.ContentID(OrderPlaced{Total: 2500, Currency: "EUR"})
	if err != nil {
		panic(err)
	}
	b, err := event.ContentID([]byte(`{ "currency": "EUR", "total": 2.5e3 }`))
	if err != nil {
		panic(err)
	}
	fmt.Println(a == b)
	_, err = event.ContentID([]byte(`{"total":9007199254740993}`))
	fmt.Println(err)
	// Output:
	// true
	// event: invalid event: content id: number "9007199254740993" is not kept by RFC 8785
}

func ExampleEscapeKey() {
	fmt.Println(event.EscapeKey("ord-7f3a"))
	fmt.Println(event.EscapeKey("shop 7.ord"))
	// Output:
	// ord-7f3a
	// shop=207=2Eord
}
