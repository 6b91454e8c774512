package bus

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestReadAck(t *testing.T) {
	t.Parallel()
	var refused *jetstream.APIError
	a := newAcks(time.Second, 1, nil)
	for data, want := range map[string]struct {
		receipt Receipt
		check   func(error) bool
	}{
		`{"stream":"EVENTS","seq":7}`:                          {receipt: Receipt{Stream: "EVENTS", Sequence: 7}},
		`{"stream":"EVENTS","seq":18446744073709551615}`:       {receipt: Receipt{Stream: "EVENTS", Sequence: 1<<64 - 1}},
		`{"stream":"EVENTS", "seq":7}`:                         {receipt: Receipt{Stream: "EVENTS", Sequence: 7}},
		`{"stream":"a\"b","seq":7}`:                            {receipt: Receipt{Stream: `a"b`, Sequence: 7}},
		`{"stream":"EVENTS","seq":7,"duplicate": true}`:        {receipt: Receipt{Stream: "EVENTS", Sequence: 7, Duplicate: true}},
		`{"stream":"EVENTS","domain":"hub","seq":7}`:           {receipt: Receipt{Stream: "EVENTS", Sequence: 7}},
		`{"stream":"EVENTS","seq":7,"batch":"x","count":2}`:    {receipt: Receipt{Stream: "EVENTS", Sequence: 7}},
		`{"error":{"code":400,"err_code":10071},"stream":"E"}`: {check: func(err error) bool { return errors.As(err, &refused) && refused.ErrorCode == 10071 }},
		`{"seq":7}`:                    {check: isInvalidAck},
		`{"stream":"EVENTS","seq":-7}`: {check: isInvalidAck},
		`{"stream":"EVENTS","seq":18446744073709551616}`: {check: isInvalidAck},
		`ok`: {check: isInvalidAck},
		``:   {check: isInvalidAck},
	} {
		receipt, err := a.read(&nats.Msg{Data: []byte(data)})
		if receipt != want.receipt || (err != nil) != (want.check != nil) || err != nil && !want.check(err) {
			t.Errorf("%s: %+v, %v", data, receipt, err)
		}
	}
	_, err := a.read(&nats.Msg{Header: nats.Header{"Status": {"503"}}})
	if !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("no responders: %v", err)
	}
}

func isInvalidAck(err error) bool { return errors.Is(err, jetstream.ErrInvalidJSAck) }
