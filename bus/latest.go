package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Latest returns the latest message on a subject of a stream, nil if there is
// none, as the stream's leader has it: the client's own reads may be answered by
// a replica that lags behind. Errors match [ErrNoStream], [ErrDenied],
// [ErrUnavailable] or [ErrClosed].
func (b *Bus) Latest(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return b.ofLeader(ctx, stream, map[string]any{"last_by_subj": subject})
}

// Next returns the first message on a subject of a stream at or after a sequence, nil
// if there is none, as the stream's leader has it. Errors are those of Latest.
func (b *Bus) Next(ctx context.Context, stream, subject string, from uint64) (*jetstream.RawStreamMsg, error) {
	return b.ofLeader(ctx, stream, map[string]any{"next_by_subj": subject, "seq": from})
}

// ofLeader asks a stream's leader for a message, nil if it does not have it.
func (b *Bus) ofLeader(ctx context.Context, stream string, which map[string]any) (*jetstream.RawStreamMsg, error) {
	request, err := json.Marshal(which)
	if err != nil {
		return nil, fmt.Errorf("bus: read %s: %w", stream, err)
	}
	api := "STREAM.MSG.GET." + stream
	var answer *nats.Msg
	err = b.Ask(ctx, api, func(ctx context.Context) (err error) {
		answer, err = b.nc.RequestWithContext(ctx, b.APIPrefix()+api, request)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bus: read %v of %s: %w", which, stream, err)
	}
	return messageOf(answer.Data, stream)
}

// Read returns the latest message on a subject of an open stream, nil if there is
// none. Any replica may answer, which may lag behind; see [Bus.Latest]. Errors are
// those of [Bus.Ask].
func (b *Bus) Read(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, subject, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subject)
	})
}

// ReadAt is [Bus.Read] for the message at a sequence.
func (b *Bus) ReadAt(ctx context.Context, stream jetstream.Stream, sequence uint64) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, strconv.FormatUint(sequence, 10), func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, sequence)
	})
}

func (b *Bus) read(ctx context.Context, stream jetstream.Stream, what string, get func(context.Context) (*jetstream.RawStreamMsg, error)) (m *jetstream.RawStreamMsg, err error) {
	cfg := stream.CachedInfo().Config
	api := "STREAM.MSG.GET." + cfg.Name
	if cfg.AllowDirect {
		api = "DIRECT.GET." + cfg.Name
	}
	err = b.Ask(ctx, api, func(ctx context.Context) (err error) {
		m, err = get(ctx)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("bus: read %s of %s: %w", what, cfg.Name, err)
	}
	return m, nil
}

// messageOf reads the server's answer.
func messageOf(answer []byte, stream string) (*jetstream.RawStreamMsg, error) {
	var said struct {
		Message struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return nil, fmt.Errorf("bus: read %s: %w", stream, requestFault(err, ErrUnavailable))
	}
	switch {
	case said.Error == nil:
	case said.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("bus: read %s: %w", stream, requestFault(said.Error, ErrRefused))
	}
	m := &jetstream.RawStreamMsg{Subject: said.Message.Subject, Sequence: said.Message.Sequence, Data: said.Message.Data, Time: said.Message.Time}
	if len(said.Message.Header) > 0 {
		var err error
		if m.Header, err = nats.DecodeHeadersMsg(said.Message.Header); err != nil {
			return nil, fmt.Errorf("bus: read %s: %w", stream, requestFault(err, ErrUnavailable))
		}
	}
	return m, nil
}
