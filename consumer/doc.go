// Package consumer runs a service's handlers on the events of a stream, each
// event taking effect once.
//
// # Role
//
// A [Registry] holds handlers by event type. A [Consumer] pulls the types'
// subjects, and what is replayed for it from the dead letters, through one
// durable at the server, and takes each message on the journey of journey.go:
// decode, claim it in the ledger, handle, make what follows durable together
// with the done mark, acknowledge. What fails is retried with full jitter, and
// dead-lettered with its story when it cannot or must not be tried again.
//
// # Lifecycle
//
// Register handlers with [Handle], make a consumer with [New], which does no
// I/O, and call [Consumer.Run] once: it blocks until its context ends and has
// then drained. [Consumer.Health] says whether it makes progress meanwhile.
//
// # Guarantees
//
//   - The step of an event (its emitted events, or its dead letter) takes
//     effect once for each consumer name, over redelivery, copies stored twice,
//     crashes, restarts, replays and a durable that is created anew, for as
//     long as the ledger's retention.
//   - Replicas of different versions share one durable and lose nothing by it: a
//     type is only ever added, starts at the stream's beginning, and waits for a
//     replica that handles it.
//   - A message is acknowledged only when it has taken effect, or lies in the
//     dead letters. Nothing is dropped.
//   - Within one process, events of one key run one after another in stream
//     order, and an event that waits for a short retry holds its key, not the others.
//   - A retry that is longer off ([RetryPolicy.DeferAfter]) and a [Timer] wait at the
//     server, over restarts of all, and take nobody's place.
//   - An event that needs what a later event of its key tells gives its key up ([Yield]):
//     the later one runs, and it is tried again until its attempts are spent.
//   - A graceful stop spends no attempt. A crash spends none either, but is
//     counted: after MaxCrashes of them the event is dead-lettered unrun.
//   - Without ledger, stream or dead-letter stream nothing is handled and
//     nothing lost, and no attempt spent: the consumer is unhealthy and resumes
//     by itself. An event that is alone in such trouble, while others of its type
//     get through, spends attempts after ten times, and is parked in the end.
//   - What can never be stored is parked: outages are a list, all else is the event's fault.
//
// # Not guaranteed
//
//   - That a handler runs once. It may run again after a failure, a crash or a
//     lost lease; effects outside NATS need an idempotency key.
//   - Order across replicas of a service, and between a replayed or long
//     deferred event and later ones: handlers check versions or states.
//   - Anything about events older than the retention that are delivered again. A
//     durable that was lost is made anew without them, handled or not.
package consumer
