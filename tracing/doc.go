// Package tracing makes OpenTelemetry spans of what Farandole does: publish, process,
// retry, replay, park. A program that does not import it carries nothing of OpenTelemetry.
//
// # Use
//
// [New] takes a TracerProvider. [Tracing.Middleware] is given to a consumer's registry
// before its handlers; [Tracing.Publish] publishes with a span. The trace travels with
// the event as CloudEvents' distributed tracing extension (traceparent, tracestate).
//
// # Spans
//
// They follow the semantic conventions for messaging and are named after what is done
// and the event type, as in "process order.placed.v1".
//
//   - publish: [Tracing.Publish].
//   - process: the first run of a handler. It continues the trace of its event, and what
//     it emits continues that of the run.
//   - retry, replay: a run after a failure, and one of a replay from the dead letters.
//     They begin a trace of their own, with a link to the event's: else a trace would go
//     on for as long as an event comes back, days after a collector has sampled it.
//   - park: beneath a run, that its event is a dead letter now.
//
// A run's span lasts until its step is stored, or its failure recorded. The attribute
// farandole.outcome says what became of it, as the metric farandole_deliveries_total does.
//
// # Not traced
//
// Events that are parked without a run of a handler, because they cannot be read, have
// expired, or have killed too many processes. What the bus does otherwise.
package tracing
