package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// passing are the server's error codes for what comes to an end by itself. All
// other codes are answers to what was asked, and will be the same next time.
var passing = []jetstream.ErrorCode{
	10004, // incomplete results: some servers of the cluster did not answer
	10005, // no suitable peers for placement: the cluster's servers are not all up yet
	10007, // the cluster has not assigned it to this server yet
	10008, // JetStream system temporarily unavailable: no leader
	10009, // not the leader
	10023, // insufficient resources
	10028, // insufficient memory
	10035, // account not found: the server does not know it yet
	10039, // JetStream not enabled for the account: it was when we connected
	10041, // an error of the replication
	10047, // insufficient storage
	10048, // the stream could not be assigned
	10075, // peers could not be moved
	10076, // JetStream not enabled: it was when we connected
	10077, // the store failed
	10118, // the stream's servers are down
	10119, // the consumer's servers are down
	10158, // a message of this id is on its way into the stream
	10163, // expected last sequence per subject temporarily unavailable
	10194, // the stream's servers cannot serve it
	10195, // the consumer's servers cannot serve it
	10202, // the cluster is being changed
}

// IsOutage reports whether err tells of an outage: NATS does not answer, or
// only that it cannot now. The same request may succeed later without anybody
// changing it. It knows the errors of this module, of the client library, and
// the answers of the server. What is not listed is no outage.
func IsOutage(err error) bool {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, ErrUnavailable):
		return true
	case errors.As(err, &api):
		return slices.Contains(passing, api.ErrorCode)
	}
	return isAny(err, nats.ErrNoResponders, nats.ErrTimeout, nats.ErrDisconnected, nats.ErrConnectionReconnecting,
		nats.ErrReconnectBufExceeded, nats.ErrStaleConnection, jetstream.ErrNoStreamResponse, jetstream.ErrAsyncPublishTimeout)
}

// requestFault gives an error of a request to JetStream its sentinel:
// [ErrNoStream], [ErrUnavailable], [ErrClosed] or, when the server answered
// something else, otherwise.
func requestFault(err, otherwise error) error {
	var network net.Error
	switch {
	case isAny(err, ErrDenied, ErrClosed, ErrNoStream, ErrUnavailable, otherwise):
		return err
	case isAny(err, nats.ErrConnectionClosed, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	case IsOutage(err), isAny(err, context.DeadlineExceeded, context.Canceled, io.EOF, net.ErrClosed), errors.As(err, &network):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", otherwise, err)
}
