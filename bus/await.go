package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// awaitAttempt is how long the first attempt may take; each one may take half as
// long again as the one before. A leader that is elected meanwhile does not
// answer what was asked before.
const awaitAttempt = time.Second

// diagnosis is how long JetStream has to say what is wrong with a stream.
const diagnosis = time.Second

// Await repeats f for as long as its error is an outage ([IsOutage]), up to
// Config.Wait: a cluster that is still forming, a stream without a leader. It
// logs once what it waits for. It is for what a service does when it starts; f
// must be safe to repeat. It returns f's last error, and for how long it waited.
func (b *Bus) Await(ctx context.Context, f func(context.Context) error) error {
	began := time.Now()
	attempt, told := awaitAttempt, false
	err := retry(ctx, b.cfg.Wait, func(ctx context.Context) error {
		bounded, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		attempt += attempt / 2
		err := f(bounded)
		switch {
		case err == nil:
			return nil
		case !IsOutage(err) || errors.Is(err, ErrClosed):
			return final{err}
		case !told && ctx.Err() == nil:
			told = true
			b.cfg.Logger.Warn().Err(err).Stringer("up_to", b.cfg.Wait-time.Since(began)).Msg("waiting for " + b.diagnose(ctx, err))
		}
		return err
	})
	var end final
	switch {
	case err == nil:
		return nil
	case errors.As(err, &end):
		return end.error
	case ctx.Err() != nil:
		return err
	}
	return fmt.Errorf("waited %v for %s: %w", time.Since(began).Round(time.Second), b.diagnose(ctx, err), err)
}

// diagnose says in a few words what does not answer: the leader of JetStream
// knows the streams that have none themselves.
func (b *Bus) diagnose(ctx context.Context, err error) string {
	if !b.nc.IsConnected() {
		return "the connection to NATS"
	}
	ctx, cancel := context.WithTimeout(ctx, diagnosis)
	defer cancel()
	names := map[string]bool{}
	ask := b.Ask(ctx, "STREAM.NAMES", func(ctx context.Context) error {
		list := b.js.StreamNames(ctx)
		for name := range list.Name() {
			names[name] = true
		}
		return list.Err()
	})
	if errors.Is(ask, ErrUnavailable) {
		return "JetStream: it has no leader"
	}
	var silent *silence
	if !errors.As(err, &silent) {
		return "what cannot answer now"
	}
	switch _, err := b.Stream(ctx, silent.stream); {
	case err == nil:
		return "what did not answer in time"
	case ask == nil && names[silent.stream]:
		return "JetStream: stream " + silent.stream + " has no leader"
	}
	return "JetStream: stream " + silent.stream + " does not answer"
}

// silence is an outage of one stream.
type silence struct {
	error
	stream string
}

func (s *silence) Unwrap() error { return s.error }

// ofStream says which stream an outage concerns, if the API request does:
// STREAM.INFO.EVENTS, CONSUMER.CREATE.EVENTS.payment.
func ofStream(api string, outage error) error {
	if parts := strings.SplitN(api, ".", 4); len(parts) > 2 {
		return &silence{outage, parts[2]}
	}
	return outage
}
