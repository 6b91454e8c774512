package webhook

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/resilience"
)

// receiver is what the log tells of the receiver: that it fails, at the first delivery
// which does, and that it takes events again.
type receiver struct {
	log     zerolog.Logger
	failing atomic.Bool
}

// note notes how a delivery has ended. A refusal of one event (400, say) is an answer,
// and the consumer's to log.
func (r *receiver) note(ctx context.Context, a answer, err error) {
	if errors.Is(err, resilience.ErrOpen) || err != nil && ctx.Err() != nil {
		return // nothing was sent, or this process has given up
	}
	if err == nil && a.status >= 500 {
		err = &statusError{status: a.status, body: string(a.body)}
	}
	switch {
	case err != nil && !r.failing.Swap(true):
		r.log.Warn().Err(err).Msg("the receiver does not take events: each is tried again, see `farandole dlq` for those that are given up")
	case err == nil && r.failing.Load() && r.failing.Swap(false):
		r.log.Info().Msg("the receiver takes events again")
	}
}
