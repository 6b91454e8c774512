package tracing

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/event"
)

// Attributes that the conventions do not have.
const (
	keyAttempt = attribute.Key("farandole.attempt")
	keyReplay  = attribute.Key("farandole.replay")
	keyOutcome = attribute.Key("farandole.outcome")
	keyAgain   = attribute.Key("farandole.again_in_ms")
	keyReason  = attribute.Key("farandole.dead_letter.reason")
)

// Middleware makes a span of each run of a handler, from its start until its step is
// stored or its failure recorded. It is given to [consumer.Registry.Use].
func (t *Tracing) Middleware(next consumer.EventHandler) consumer.EventHandler {
	return func(ctx context.Context, e event.Event) (consumer.Step, error) {
		d, running := consumer.DeliveryOf(ctx)
		ctx, span := t.begin(ctx, e, d)
		returned := false
		defer func() { // a panic passes through here
			if !returned {
				span.SetStatus(codes.Error, "the handler panicked")
			}
			if !running {
				span.End()
			}
		}()
		if running {
			consumer.OnEnd(ctx, func(end consumer.End) { t.end(ctx, span, e, end) })
		}
		step, err := next(ctx, e)
		returned = true
		if err != nil && !errors.Is(err, consumer.Skip) {
			fail(span, err)
		}
		return carry(ctx, step), err
	}
}

// begin starts the span of a run: in the trace of the event, or, for a run that is not
// the event's first, in a new one that is linked to it.
func (t *Tracing) begin(ctx context.Context, e event.Event, d consumer.Delivery) (context.Context, trace.Span) {
	operation := "process"
	switch {
	case d.Attempt > 1:
		operation = "retry"
	case d.Replay > 0:
		operation = "replay"
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributesOf(e, operation, "process")...)}
	if d.Consumer != "" {
		options = append(options, trace.WithAttributes(
			semconv.MessagingConsumerGroupName(string(d.Consumer)), semconv.MessagingDestinationName(d.Stream),
			keyAttempt.Int(d.Attempt), keyReplay.Int(d.Replay)))
	}
	from := spanOf(e)
	switch {
	case operation == "process":
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
	case from.IsValid():
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
	default:
		options = append(options, trace.WithNewRoot())
	}
	return t.tracer.Start(ctx, operation+" "+e.Type(), options...)
}

// end ends the span of a run. A dead letter gets one of its own beneath it.
func (t *Tracing) end(ctx context.Context, span trace.Span, e event.Event, end consumer.End) {
	span.SetAttributes(keyOutcome.String(end.Outcome))
	if end.Again > 0 {
		span.SetAttributes(keyAgain.Int64(end.Again.Milliseconds()))
	}
	if end.Reason != "" {
		at := time.Now()
		_, park := t.tracer.Start(ctx, "park "+e.Type(), trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(append(attributesOf(e, "park", "settle"), keyReason.String(end.Reason))...))
		park.End(trace.WithTimestamp(at))
	}
	span.End()
}

// carry gives what a run emits the trace of the run.
func carry(ctx context.Context, s consumer.Step) consumer.Step {
	for i := range s.Events {
		s.Events[i] = Draft(ctx, s.Events[i])
	}
	for i := range s.Timers {
		s.Timers[i].Event = Draft(ctx, s.Timers[i].Event)
	}
	return s
}

// attributesOf are those that the conventions for messaging and CloudEvents ask for.
func attributesOf(e event.Event, operation, kind string) []attribute.KeyValue {
	all := []attribute.KeyValue{
		semconv.MessagingSystemKey.String("nats"),
		semconv.MessagingOperationName(operation),
		semconv.MessagingOperationTypeKey.String(kind),
		semconv.MessagingMessageID(e.ID()),
		semconv.MessagingMessageBodySize(len(e.Data())),
		semconv.CloudEventsEventID(e.ID()),
		semconv.CloudEventsEventSource(e.Source()),
		semconv.CloudEventsEventType(e.Type()),
	}
	if saga := event.Extension(e, event.ExtCorrelation); saga != "" {
		all = append(all, semconv.MessagingMessageConversationID(saga))
	}
	return all
}
