package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// latestTimeout bounds one question to a stream's leader.
const latestTimeout = 5 * time.Second

// Latest returns the latest message on a subject of a stream, nil if there is
// none, as the stream's leader has it: the client's own reads may be answered by
// a replica that lags behind. Errors match [ErrNoStream], [ErrDenied],
// [ErrUnavailable] or [ErrClosed].
func (b *Bus) Latest(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("bus: read %s: %w", subject, err)
	}
	api := "STREAM.MSG.GET." + stream
	var answer *nats.Msg
	ctx, cancel := context.WithTimeout(ctx, latestTimeout)
	defer cancel()
	err = b.call(ctx, api, func(ctx context.Context) (err error) {
		answer, err = b.nc.RequestWithContext(ctx, jetstream.DefaultAPIPrefix+api, request)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bus: read %s of %s: %w", subject, stream, readFault(err))
	}
	m, err := latestOf(answer.Data, stream)
	if m == nil || err != nil {
		return nil, err
	}
	m.Subject = subject
	return m, nil
}

// latestOf reads the server's answer.
func latestOf(answer []byte, stream string) (*jetstream.RawStreamMsg, error) {
	var said struct {
		Message struct {
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return nil, fmt.Errorf("bus: read %s: %w", stream, readFault(err))
	}
	switch {
	case said.Error == nil:
	case said.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	case said.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		return nil, fmt.Errorf("bus: read %s: %w", stream, ErrNoStream)
	default:
		return nil, fmt.Errorf("bus: read %s: %w", stream, readFault(said.Error))
	}
	m := &jetstream.RawStreamMsg{Sequence: said.Message.Sequence, Data: said.Message.Data, Time: said.Message.Time}
	if len(said.Message.Header) > 0 {
		var err error
		if m.Header, err = nats.DecodeHeadersMsg(said.Message.Header); err != nil {
			return nil, fmt.Errorf("bus: read %s: %w", stream, readFault(err))
		}
	}
	return m, nil
}
