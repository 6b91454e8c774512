package bus_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/farandole/farandole/bus"
)

type OrderPlaced struct {
	Total    int64  `json:"total"`
	Currency string `json:"currency"`
}

var Placed = bus.Define[OrderPlaced]("order.placed.v1")

func ExampleDefine() {
	draft := Placed.New("ord-7f3a", OrderPlaced{Total: 2500, Currency: "EUR"})
	event, err := draft.Seal(bus.Identity{
		ID:     "0197f3a2-5c1e-7000-8000-000000000001",
		Source: "order",
		Time:   time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := Placed.Decode(event)
	fmt.Println(event.Type(), bus.PartitionKey(event), data.Total, data.Currency, err)
	// Output: order.placed.v1 ord-7f3a 2500 EUR <nil>
}

func ExampleDraft_Seal() {
	draft := bus.Draft{Type: "order.placed.v1", Key: "ord-7f3a", Extensions: map[string]string{"trace-id": "1"}}
	_, err := draft.Seal(bus.Identity{ID: "1", Source: "order"})
	fmt.Println(errors.Is(err, bus.ErrInvalidEvent))
	fmt.Println(err)
	// Output:
	// true
	// bus: invalid event: extension "trace-id": the name of an extension is [a-z0-9]+ and not one of the specification's
}

func ExampleEncode() {
	event, err := bus.Draft{
		Type: "order.placed.v1", Key: "ord-7f3a", Subject: `café "7"`,
		ContentType: bus.ContentTypeJSON, Data: []byte(`{"total":9007199254740993}`),
	}.Seal(bus.Identity{ID: "1", Source: "order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg, err := bus.Encode(event)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(msg.Header.Get("ce-subject"), string(msg.Data))
	decoded, err := bus.Decode(msg.Header, msg.Data)
	fmt.Println(decoded.Subject(), string(decoded.Data()), err)
	// Output:
	// caf%C3%A9%20%227%22 {"total":9007199254740993}
	// café "7" {"total":9007199254740993} <nil>
}

func ExampleEncodeStructured() {
	event, err := bus.Draft{
		Type: "order.placed.v1", Key: "ord-7f3a", ContentType: bus.ContentTypeJSON, Data: []byte(`{"total":1.0}`),
	}.Seal(bus.Identity{ID: "1", Source: "order"})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg, err := bus.EncodeStructured(event)
	fmt.Println(string(msg.Data), err)
	// Output: {"specversion":"1.0","id":"1","source":"order","type":"order.placed.v1","datacontenttype":"application/json","correlationid":"ord-7f3a","partitionkey":"ord-7f3a","data":{"total":1.0}} <nil>
}

func ExampleDecode() {
	event, err := bus.Decode(nil, []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"order.placed.v1","data":[1.0]}`))
	fmt.Println(event.ID(), string(event.Data()), err)

	_, err = bus.Decode(nil, []byte(`{"specversion":"1.0","source":"/s","type":"order.placed.v1","time":"1719999999"}`))
	fmt.Println(errors.Is(err, bus.ErrDecode))
	fmt.Println(err)
	// Output:
	// 1 [1.0] <nil>
	// true
	// bus: cannot decode: id: missing; time: not an RFC 3339 time: "1719999999"
}

func ExampleContentID() {
	a, err := bus.ContentID(OrderPlaced{Total: 2500, Currency: "EUR"})
	if err != nil {
		panic(err)
	}
	b, err := bus.ContentID([]byte(`{ "currency": "EUR", "total": 2.5e3 }`))
	if err != nil {
		panic(err)
	}
	fmt.Println(a == b)
	_, err = bus.ContentID([]byte(`{"total":9007199254740993}`))
	fmt.Println(err)
	// Output:
	// true
	// bus: invalid event: content id: number "9007199254740993" is not kept by RFC 8785
}

func ExampleEscapeKey() {
	fmt.Println(bus.EscapeKey("ord-7f3a"))
	fmt.Println(bus.EscapeKey("shop 7.ord"))
	// Output:
	// ord-7f3a
	// shop=207=2Eord
}
