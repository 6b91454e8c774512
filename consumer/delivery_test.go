package consumer

import (
	"testing"

	"github.com/nats-io/nats.go"
)

func TestLaneOf(t *testing.T) {
	t.Parallel()
	at := func(subject string, header nats.Header) *delivery {
		return &delivery{msg: &nats.Msg{Subject: subject, Header: header}, stream: "S", sequence: 7}
	}
	for name, tt := range map[string]struct {
		d    *delivery
		own  bool
		want string
	}{
		"key token":     {at("events.order.placed.v1.o-1", nil), true, "o-1"},
		"redrive":       {at("redrive.payment.order.placed.v1.o-1", nil), true, "o-1"},
		"partition key": {at("orders.new", nats.Header{"ce-partitionkey": {"k"}, "ce-correlationid": {"c"}}), false, "S k"},
		"correlation":   {at("orders.new", nats.Header{"ce-correlationid": {"c"}}), false, "S c"},
		"neither":       {at("orders.new", nil), false, "S 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := laneOf(tt.d, tt.own); got != tt.want {
				t.Errorf("lane = %q, want %q", got, tt.want)
			}
		})
	}
}
