package bus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// The server's error codes that publishers are told apart by.
const (
	codeInsufficientResources = 10023
	codeMemoryExceeded        = 10028
	codeStorageExceeded       = 10047
	codeStoreFailed           = 10077
	codeWrongLastMsgID        = 10070
	codeHeaderTooLarge        = 10097
	codeBatchIncomplete       = 10176
	codeBatchTooLarge         = 10199
	codeBatchDuplicateID      = 10201
	codeTooManyBatches        = 10210
)

// publishFault gives an error of the client or the server its sentinel.
func publishFault(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return fmt.Errorf("%w: %w", apiSentinel(api), err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return ErrNoStream
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: more than the server's max_payload", ErrTooLarge)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return ErrClosed
	case errors.Is(err, nats.ErrBadSubject):
		return fmt.Errorf("%w: not a subject", event.ErrInvalidName)
	case errors.Is(err, jetstream.ErrAsyncPublishReplySubjectSet):
		return fmt.Errorf("%w: the message has a reply subject", event.ErrInvalidName)
	case errors.Is(err, jetstream.ErrInvalidJSAck):
		return fmt.Errorf("%w: answered by something that is not a stream", ErrNoStream)
	}
	return requestFault(err, ErrRefused)
}

func apiSentinel(api *jetstream.APIError) error {
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant, codeWrongLastMsgID:
		return ErrConflict
	case codeBatchIncomplete:
		return ErrIncomplete
	case codeTooManyBatches:
		return ErrBusy
	case codeBatchDuplicateID:
		return ErrDuplicate
	case jetstream.JSErrCodeStreamMessageExceedsMaximum, codeHeaderTooLarge, codeBatchTooLarge:
		return ErrTooLarge
	case codeStorageExceeded, codeMemoryExceeded, codeInsufficientResources:
		return ErrStreamFull
	case codeStoreFailed: // one code for all that the store can say
		switch {
		case strings.Contains(api.Description, "maximum"), strings.Contains(api.Description, "no space left"):
			return ErrStreamFull
		case strings.Contains(api.Description, "too large"):
			return ErrTooLarge
		}
	}
	if IsOutage(api) {
		return ErrUnavailable
	}
	return ErrRefused
}
