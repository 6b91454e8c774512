package bus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
)

func TestOutagesAreAList(t *testing.T) {
	t.Parallel()
	answer := func(status int, code jetstream.ErrorCode) error {
		return fmt.Errorf("wrapped: %w", &jetstream.APIError{Code: status, ErrorCode: code})
	}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"unavailable":               {fmt.Errorf("bus: publish x: %w", bus.ErrUnavailable), true},
		"no leader":                 {answer(503, 10008), true},
		"cluster still forms":       {answer(400, 10005), true},
		"stream offline":            {answer(500, 10118), true},
		"insufficient resources":    {answer(503, 10023), true},
		"nobody answers":            {nats.ErrNoResponders, true},
		"no answer in time":         {nats.ErrTimeout, true},
		"connection lost":           {nats.ErrDisconnected, true},
		"nobody stores it":          {jetstream.ErrNoStreamResponse, true},
		"KV of a deleted stream":    {jetstream.ErrBucketNotFound, false},
		"stream not found":          {jetstream.ErrStreamNotFound, false},
		"invalid configuration":     {answer(500, 10052), false},
		"a code nobody knows":       {answer(503, 12345), false},
		"denied":                    {bus.ErrDenied, false},
		"no stream":                 {bus.ErrNoStream, false},
		"closed":                    {bus.ErrClosed, false},
		"the time of somebody else": {context.DeadlineExceeded, false},
		"anything":                  {errors.New("division by zero"), false},
		"nothing":                   {nil, false},
	} {
		if got := bus.IsOutage(tc.err); got != tc.want {
			t.Errorf("%s: %v is an outage: %v, want %v", name, tc.err, got, tc.want)
		}
	}
}
