package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/dlq"
)

// Log keys.
const (
	keyEventID     = "event_id"
	keyEventType   = "event_type"
	keyEventKey    = "event_key"
	keyConsumer    = "consumer"
	keyAttempt     = "attempt"
	keyCorrelation = "correlation_id"
	keySubject     = "subject"
)

// maxErrorText bounds an error's text in ledgers and dead letters.
const maxErrorText = 1024

// outgoingIDs is the UUIDv5 namespace of derived event ids (ADR 0001).
var outgoingIDs = uuid.MustParse("6f1f8a52-5c1c-5e0a-9d0b-4a7e2f0f6c11") //nolint:gochecknoglobals // Go has no constants of this type

// decode reads the event and names it: by source and id, else by where the
// message is stored, which is the same at every redelivery.
func (c *Consumer) decode(d *delivery) (bus.Event, error) {
	e, err := bus.Decode(d.msg.Header, d.msg.Data)
	if err != nil {
		d.key = d.redrive.Key
		if d.key == "" {
			d.key = bus.KeyOfMessage(d.stream, d.sequence)
		}
		return bus.Event{}, withOutcome(undecodable, err, 0)
	}
	d.key = bus.EventKeyOf(e)
	if at, ok := expiry(e); ok && time.Now().After(at) {
		return e, withOutcome(expired, fmt.Errorf("%w at %s", errExpired, at.Format(time.RFC3339)), 0)
	}
	return e, nil
}

func (d *delivery) request(cfg Config) dedup.Request {
	return dedup.Request{Consumer: cfg.Name, Key: d.key, Replay: d.redrive.Replay, Lease: cfg.Lease}
}

func (d *delivery) origin() dlq.Origin {
	return dlq.Origin{Stream: d.stream, Sequence: d.sequence, Time: d.stored}
}

// handle runs the handler under its timeout, with the heartbeat on the claim.
func (c *Consumer) handle(ctx context.Context, d *delivery, claim *dedup.Claim, e bus.Event) (Step, error) {
	hctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hctx, stop := context.WithTimeoutCause(hctx, c.cfg.HandlerTimeout, ErrTimeout)
	defer stop()
	start := time.Now()
	d.hold(claim, cancel, start.Add(c.cfg.HandlerTimeout))
	step, err := c.registry.Invoke(hctx, c.bus.Names(), e)
	d.drop()
	c.metrics.observe(time.Since(start))
	if cause := context.Cause(hctx); err != nil && cause != nil && !isFinal(err) && !errors.Is(err, Skip) {
		// The handler's error is what its cancellation did to it: say why it was cancelled.
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return step, err
}

// contain turns a panic into an error, so that one event cannot take the
// process and every other event in it down.
func contain(ctx context.Context, h handler, e bus.Event) (s Step, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &panicError{value: r, at: panickedAt()}
		}
	}()
	return h(ctx, e)
}

// panicError matches [ErrPanic] and, if the value was an error, that.
type panicError struct {
	value any
	at    string
}

func (p *panicError) Error() string {
	return fmt.Sprintf("%s: %s%s", ErrPanic.Error(), fmt.Sprint(p.value), p.at)
}

// panicFrames is how many callers a panic's text names.
const panicFrames = 6

// panickedAt lists who called whom when the panic came, a line each, without
// addresses: the same panic has the same text, and dead letters group by it.
func panickedAt() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var text strings.Builder
	for n := 0; n < panicFrames; {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "consumer.contain") {
			break // below it is the consumer, not the handler
		}
		if !strings.HasPrefix(f.Function, "runtime.") {
			fmt.Fprintf(&text, "\n  at %s (%s:%d)", path.Base(f.Function), filepath.Base(f.File), f.Line)
			n++
		}
		if !more {
			break
		}
	}
	return text.String()
}

func (p *panicError) Unwrap() []error {
	if err, ok := p.value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}

// seal gives a step's events their identity. The ids are derived from what
// caused them, so a rerun emits the same ones and a half-finished step repeats
// harmlessly. What can never be stored is found here, before any is sent.
func (c *Consumer) seal(cause bus.Event, step Step) ([]*nats.Msg, error) {
	out := make([]*nats.Msg, 0, len(step.Events))
	for i, draft := range step.Events {
		m, err := c.message(draft, c.identity(cause, i))
		if err != nil {
			return nil, Permanent(fmt.Errorf("consumer: outgoing event %d of %s: %w", i, cause.Type(), err))
		}
		out = append(out, m)
	}
	return out, nil
}

func (c *Consumer) message(draft bus.Draft, id bus.Identity) (*nats.Msg, error) {
	e, err := draft.Seal(id)
	if err != nil {
		return nil, err
	}
	m, err := c.bus.Message(e)
	if err != nil {
		return nil, err
	}
	if size, limit := payloadSize(m), c.bus.Conn().MaxPayload(); limit > 0 && size > limit {
		return nil, fmt.Errorf("%w: %d bytes, the server takes %d", bus.ErrTooLarge, size, limit)
	}
	return m, nil
}

// payloadSize is what the server's max_payload bounds: headers and data.
func payloadSize(m *nats.Msg) int64 {
	size := len("NATS/1.0\r\n") + len("\r\n") + len(m.Data)
	for name, values := range m.Header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return int64(size)
}

func (c *Consumer) identity(cause bus.Event, index int) bus.Identity {
	id := DerivedIdentity(c.cfg.Name, cause, index)
	id.Source = c.cfg.Source
	id.TypePrefix = c.bus.Names().TypePrefix
	return id
}

// DerivedIdentity is the identity of the index-th event that consumer emits
// because of cause, but for its source: id UUIDv5(consumer, event key, index),
// the cause's correlation and trace, causation the cause's id, time now.
func DerivedIdentity(consumer bus.Consumer, cause bus.Event, index int) bus.Identity {
	name := make([]byte, 0, 80)
	name = append(name, consumer...)
	name = append(name, 0)
	name = append(name, bus.EventKeyOf(cause)...)
	name = append(name, 0)
	name = strconv.AppendInt(name, int64(index), 10)
	return bus.Identity{
		ID:          uuid.NewSHA1(outgoingIDs, name).String(),
		Time:        time.Now().UTC(),
		Correlation: bus.Extension(cause, bus.ExtCorrelation),
		Causation:   cause.ID(),
		Traceparent: bus.Extension(cause, bus.ExtTraceparent),
		Tracestate:  bus.Extension(cause, bus.ExtTracestate),
	}
}

// attempt tells a failure for the ledger.
func (c *Consumer) attempt(claim *dedup.Claim, err error) bus.Attempt {
	return bus.Attempt{
		Number: claim.Failures + 1,
		At:     time.Now().UTC(),
		Class:  classOf(err),
		Error:  cut(err.Error(), maxErrorText),
		Host:   c.host,
	}
}

func (c *Consumer) story(d *delivery, claim *dedup.Claim, final *bus.Attempt, reason string) dlq.Story {
	attempts, failures := claim.Attempts, claim.Failures
	if final != nil {
		attempts, failures = append(slices.Clone(attempts), *final), failures+1
	}
	return dlq.Story{
		Consumer: c.cfg.Name, Reason: reason, Key: d.key,
		Attempts: attempts, Failures: failures, Crashes: claim.Crashes,
		Host: c.host, Version: c.cfg.Version, At: time.Now().UTC(),
	}
}

// classOf names the kind of an error for people and statistics: the type of
// the innermost error, "error" for a plain one.
func classOf(err error) string {
	switch {
	case errors.Is(err, ErrPanic):
		return "panic"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, bus.ErrDecode):
		return "decode"
	}
	for {
		switch e := err.(type) { //nolint:errorlint // walks the chain by hand to find its end
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				err = inner
				continue
			}
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				err = all[len(all)-1]
				continue
			}
		}
		break
	}
	name := strings.TrimPrefix(reflect.TypeOf(err).String(), "*")
	if name == "errors.errorString" {
		return "error"
	}
	return name
}

// cut shortens s to at most n bytes, at a rune's boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func lastOf(attempts []bus.Attempt) bus.Attempt {
	if len(attempts) == 0 {
		return bus.Attempt{}
	}
	return attempts[len(attempts)-1]
}

// isFinal reports whether a handler chose the event's end itself.
func isFinal(err error) bool {
	var wish *outcomeError
	return errors.As(err, &wish) && wish.outcome != retryAfter
}

// expiry reads the CloudEvents expirytime extension.
func expiry(e bus.Event) (time.Time, bool) {
	v := bus.Extension(e, "expirytime")
	if v == "" {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, v)
	return at, err == nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

func (c *Consumer) eventLog(d *delivery, l *zerolog.Event) *zerolog.Event {
	return l.Str(keyEventKey, string(d.key)).Str(keySubject, d.msg.Subject).Uint64("sequence", d.sequence)
}
