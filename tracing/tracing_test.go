package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/tracing"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// soon is how long a test waits for what has to happen, on a slow machine.
const soon = 30 * time.Second

var (
	placed   = event.Define[int]("order.placed.v1")
	captured = event.Define[int]("payment.captured.v1")
)

// traced is a system whose spans are kept in memory.
type traced struct {
	*testing.T
	bus   *bus.Bus
	spans *tracetest.InMemoryExporter
	sdk   *sdktrace.TracerProvider
	*tracing.Tracing
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	sdk := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() {
		if err := sdk.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return &traced{T: t, bus: bustest.NewBus(t), spans: spans, sdk: sdk, Tracing: tracing.New(sdk)}
}

// run starts a consumer whose handlers are traced.
func (s *traced) run(name event.Consumer, register func(*consumer.Registry)) *consumer.Consumer {
	s.Helper()
	r := consumer.NewRegistry()
	r.Use(s.Middleware)
	register(r)
	c, err := consumer.New(s.bus, r, consumer.Config{
		Name: name, Retry: consumer.RetryPolicy{MaxAttempts: 2, BaseDelay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond},
	})
	if err != nil {
		s.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	return c
}

// publish publishes an order as an HTTP handler does, and returns the trace.
func (s *traced) publish(order int) trace.SpanContext {
	s.Helper()
	ctx, request := s.sdk.Tracer("http").Start(s.Context(), "POST /orders")
	defer request.End()
	e, err := s.bus.Seal(placed.New("ord-1", order))
	if err == nil {
		_, err = s.Publish(ctx, s.bus, e)
	}
	if err != nil {
		s.Fatal(err)
	}
	return request.SpanContext()
}

// named waits for n spans of a name and returns them.
func (s *traced) named(name string, n int) (found tracetest.SpanStubs) {
	s.Helper()
	bustest.Eventually(s, soon, func() error {
		found = nil
		all := s.spans.GetSpans()
		for _, span := range all {
			if span.Name == name {
				found = append(found, span)
			}
		}
		if len(found) != n {
			return fmt.Errorf("%d spans %q, want %d, of %+v", len(found), name, n, all.Snapshots())
		}
		return nil
	})
	return found
}

func value(span tracetest.SpanStub, key string) attribute.Value {
	for _, a := range span.Attributes {
		if string(a.Key) == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

func TestOneTraceFollowsAnOrderThroughTheServices(t *testing.T) {
	t.Parallel()
	s := newTraced(t)
	s.run("payment", func(r *consumer.Registry) {
		consumer.Handle(r, placed, func(_ context.Context, e event.Event, order int) (consumer.Step, error) {
			return consumer.Emit(captured.New(event.PartitionKey(e), order)), nil
		})
	})
	s.run("inventory", func(r *consumer.Registry) {
		consumer.Handle(r, captured, func(context.Context, event.Event, int) (consumer.Step, error) {
			return consumer.Step{}, consumer.Skip
		})
	})
	request := s.publish(1)
	published := s.named("publish order.placed.v1", 1)[0]
	paid := s.named("process order.placed.v1", 1)[0]
	stocked := s.named("process payment.captured.v1", 1)[0]
	parent := request.SpanID()
	for _, span := range []tracetest.SpanStub{published, paid, stocked} {
		if span.SpanContext.TraceID() != request.TraceID() || span.Parent.SpanID() != parent || span.Status.Code != codes.Unset {
			t.Errorf("%s is %+v beneath %v, want it in trace %v beneath %v", span.Name, span.SpanContext, span.Parent.SpanID(), request.TraceID(), parent)
		}
		parent = span.SpanContext.SpanID()
	}
	events := s.bus.Names().EventsStream()
	for key, want := range map[string]string{
		"messaging.system": "nats", "messaging.operation.type": "process", "messaging.operation.name": "process", "messaging.destination.name": events,
		"messaging.consumer.group.name": "payment", "cloudevents.event_type": "order.placed.v1", "farandole.outcome": "handled",
	} {
		if got := value(paid, key).AsString(); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if paid.SpanKind != trace.SpanKindConsumer || published.SpanKind != trace.SpanKindProducer || value(published, "messaging.destination.name").AsString() != events {
		t.Errorf("kinds are %v and %v", paid.SpanKind, published.SpanKind)
	}
	if got := value(stocked, "farandole.outcome").AsString(); got != "skipped" {
		t.Errorf("the skipped one has the outcome %q", got)
	}
}

func TestRetriesAndReplaysAreLinked(t *testing.T) {
	t.Parallel()
	s := newTraced(t)
	var mended atomic.Bool
	s.run("payment", func(r *consumer.Registry) {
		consumer.Handle(r, placed, func(context.Context, event.Event, int) (consumer.Step, error) {
			if mended.Load() {
				return consumer.Step{}, nil
			}
			panic(errors.New("gateway is down"))
		})
	})
	request := s.publish(1)
	from := s.named("publish order.placed.v1", 1)[0].SpanContext
	first := s.named("process order.placed.v1", 1)[0]
	again := s.named("retry order.placed.v1", 1)[0]
	park := s.named("park order.placed.v1", 1)[0]
	if first.SpanContext.TraceID() != request.TraceID() || first.Status.Code != codes.Error || value(first, "farandole.outcome").AsString() != "retried" {
		t.Errorf("the first run is %+v", first)
	}
	linked := func(span tracetest.SpanStub, outcome string) {
		t.Helper()
		if span.SpanContext.TraceID() == request.TraceID() || span.Parent.IsValid() || len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != from.SpanID() {
			t.Errorf("%s is in trace %v beneath %v with the links %+v, want a trace of its own and a link to %v", span.Name, span.SpanContext.TraceID(), span.Parent, span.Links, from)
		}
		if got := value(span, "farandole.outcome").AsString(); got != outcome {
			t.Errorf("%s has the outcome %q, want %q", span.Name, got, outcome)
		}
	}
	linked(again, "parked")
	if park.Parent.SpanID() != again.SpanContext.SpanID() || value(park, "farandole.dead_letter.reason").AsString() != event.ReasonExhausted {
		t.Errorf("park is %+v, want it beneath the retry", park)
	}
	mended.Store(true)
	queue, err := letters.Open(s.bus)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, soon, func() error { // the letter is stored a moment after its run has ended
		sum, err := queue.Replay(t.Context(), dlq.Selection{All: true}, dlq.ReplayOptions{}, nil)
		if err == nil && sum.Counts[dlq.Replayed] == 0 {
			err = fmt.Errorf("%+v", sum)
		}
		return err
	})
	replay := s.named("replay order.placed.v1", 1)[0]
	linked(replay, "handled")
	if value(replay, "farandole.replay").AsInt64() != 1 || value(replay, "farandole.attempt").AsInt64() != 1 {
		t.Errorf("the replay is %+v", replay.Attributes)
	}
}

func TestDraftTakesTheTraceAlong(t *testing.T) {
	t.Parallel()
	s := newTraced(t)
	d := placed.New("ord-1", 1)
	if got := tracing.Draft(t.Context(), d); got.Extensions != nil {
		t.Errorf("a draft without a trace has %v", got.Extensions)
	}
	ctx, span := s.sdk.Tracer("http").Start(t.Context(), "POST /orders")
	defer span.End()
	e, err := tracing.Draft(ctx, d).Seal(event.Identity{ID: "1", Source: "/shop", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Tracestate: "a=b"})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())
	if got := event.Extension(e, event.ExtTraceparent); got != want || event.Extension(e, event.ExtTracestate) != "" {
		t.Errorf("traceparent is %q, tracestate %q; want %q and none", got, event.Extension(e, event.ExtTracestate), want)
	}
	mine := tracing.Draft(ctx, event.Draft{Extensions: map[string]string{event.ExtTraceparent: want[:len(want)-1] + "0"}})
	if got := mine.Extensions[event.ExtTraceparent]; got == want {
		t.Errorf("the draft's own trace is replaced by %s", got)
	}
}

func TestHandlersAreTracedWithoutAServer(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	sdk := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	r := consumer.NewRegistry()
	r.Use(tracing.New(sdk).Middleware)
	consumer.Handle(r, placed, func(_ context.Context, e event.Event, _ int) (consumer.Step, error) {
		return consumer.Emit(captured.New(event.PartitionKey(e), 1)), nil
	})
	e, err := placed.New("ord-1", 1).Seal(event.Identity{ID: "1", Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	effects, err := bustest.Handle(t.Context(), r, "payment", e)
	if err != nil || len(effects.Events) != 1 || event.Extension(effects.Events[0], event.ExtTraceparent) == "" {
		t.Errorf("effects are %+v: %v", effects, err)
	}
	if got := spans.GetSpans(); len(got) != 1 || got[0].Name != "process order.placed.v1" {
		t.Errorf("spans are %+v", got)
	}
}
