package consumer

import (
	"errors"

	"github.com/farandole/farandole/consumer/internal/durable"
)

var (
	// ErrConfig is returned by New when a setting or registration is wrong,
	// and by Run when it contradicts the stream or the ledger.
	ErrConfig = durable.ErrConfig
	// ErrUnhealthy is matched by what Health returns while the consumer cannot make progress.
	ErrUnhealthy = errors.New("consumer: unhealthy")
	// ErrPanic is matched by the error of a handler that panicked.
	ErrPanic = errors.New("consumer: handler panicked")
	// ErrGoexit is matched by the error of a handler that ended its goroutine, as
	// runtime.Goexit and the FailNow of a test do.
	ErrGoexit = errors.New("consumer: handler ended its goroutine")
	// ErrTimeout is matched by the error of a handler that outran its timeout.
	ErrTimeout = errors.New("consumer: handler timeout")
	// ErrAbandoned is returned by Run when handlers ignored their cancellation.
	ErrAbandoned = errors.New("consumer: handlers did not return")
	// ErrTimer is matched when a step's timers cannot be: an illegal name or
	// time, or a timer set or cancelled twice in one step. The event is
	// dead-lettered as "permanent".
	ErrTimer = errors.New("consumer: invalid timer")
	// ErrNoTimers is matched by what Health returns after a step with timers
	// while the event stream does not keep any; the event waits.
	ErrNoTimers = errors.New("consumer: no timers")
	// ErrRunning is returned by [Deletion] for a consumer that a process runs.
	ErrRunning = errors.New("consumer: is running")
	// ErrNoDurable is returned by [Drop] for a consumer that has none.
	ErrNoDurable = durable.ErrNone

	// errShutdown is why handlers are cancelled at the end of the grace period.
	errShutdown = errors.New("consumer: shutting down")
	// errStuck is reported while handlers do not return although they were cancelled.
	errStuck = errors.New("consumer: handlers ignore their cancellation")
	// errAlone is why an event spends an attempt that meets an outage alone.
	errAlone = errors.New("consumer: no answer to this event again and again, while others get through")
	// errUnbound is why a durable is bound again: it does not answer.
	errUnbound = errors.New("consumer: durable does not answer")
	// errRebind is why a slice is given another durable: it begins where this one ended.
	errRebind = errors.New("consumer: durable to be made anew")
	// errStarved is reported while nobody pulls although something is pending.
	errStarved = errors.New("consumer: nothing is pulled")
	// errClogged is reported while waiting retries fill MaxAckPending.
	errClogged = errors.New("consumer: clogged by retries")
	// errNoHandler is reported while events come back that no replica handles.
	errNoHandler = errors.New("consumer: no handler")
	// errEnded is why a consumer is unhealthy whose Run has returned.
	errEnded = errors.New("consumer: ended")
	// errExpired is why an event is dead-lettered whose expirytime has passed.
	errExpired = errors.New("consumer: event expired")
	// errStarting is why a consumer is unhealthy that has not begun.
	errStarting = errors.New("consumer: starting")
	// errCrashLoop is why an event is dead-lettered that was running whenever the process died.
	errCrashLoop = errors.New("consumer: process died while the handler ran")
	// errHeartbeat is why a handler is cancelled whose lease could not be renewed.
	errHeartbeat = errors.New("consumer: heartbeat failed")
)
