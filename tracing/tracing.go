package tracing

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// scope names the instrumentation.
const scope = "github.com/farandole/farandole/tracing"

// Tracing makes spans. It is safe for concurrent use.
type Tracing struct{ tracer trace.Tracer }

// New returns one whose spans go to a provider: otel.GetTracerProvider() is the one
// that a program has set for all.
func New(provider trace.TracerProvider) *Tracing {
	return &Tracing{tracer: provider.Tracer(scope)}
}

// Publish is [bus.Bus.Publish] within a span, whose trace goes with the event. Errors
// are those of that.
func (t *Tracing) Publish(ctx context.Context, b *bus.Bus, e event.Event) (bus.Receipt, error) {
	ctx, span := t.tracer.Start(ctx, "publish "+e.Type(), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attributesOf(e, "publish", "send")...))
	defer span.End()
	e = e.Clone() // the caller's stays as it is
	for name, value := range contextOf(ctx) {
		e.SetExtension(name, value)
	}
	receipt, err := b.Publish(ctx, e)
	if err != nil {
		fail(span, err)
		return receipt, err
	}
	span.SetAttributes(semconv.MessagingDestinationName(receipt.Stream))
	return receipt, nil
}

// Draft puts the trace of ctx into a draft: for events that are published later, as
// those of an outbox. A draft that has a trace keeps it.
func Draft(ctx context.Context, d event.Draft) event.Draft {
	found := contextOf(ctx)
	if len(found) == 0 || d.Extensions[event.ExtTraceparent] != "" {
		return d
	}
	maps.Copy(found, d.Extensions)
	d.Extensions = found
	return d
}

// contextOf are traceparent and tracestate of the span in ctx, none if there is none.
func contextOf(ctx context.Context) propagation.MapCarrier {
	all := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, all)
	return all
}

// spanOf is the span whose trace an event brings, not valid if there is none.
func spanOf(e event.Event) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{
		event.ExtTraceparent: event.Extension(e, event.ExtTraceparent), event.ExtTracestate: event.Extension(e, event.ExtTracestate),
	})
	return trace.SpanContextFromContext(ctx)
}

func fail(span trace.Span, err error) {
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}
