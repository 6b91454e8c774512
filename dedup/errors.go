package dedup

import "errors"

var (
	// ErrLeaseLost is returned when another worker has taken the event over,
	// when the claim has ended already with another outcome, or when it was
	// never held. The caller must not settle the message in any way.
	ErrLeaseLost = errors.New("dedup: lease lost")
	// ErrSettled is returned to a worker that ran an event without a claim,
	// when the event has taken effect or was dead-lettered meanwhile. Nothing
	// was stored: the caller acknowledges its copy.
	ErrSettled = errors.New("dedup: settled elsewhere")
	// ErrStale is returned by Complete when a document that the step is based
	// on was written by another step meanwhile, or when others were in the way
	// of the handler's transaction. Nothing was stored and the claim is still
	// held: the handler runs again, on what is there now.
	ErrStale = errors.New("dedup: state has changed")
	// ErrHalfStored is returned for a document whose step was stored in part,
	// which a server with one replica does when its storage ends in the middle
	// of a batch (docs/upstream.md). Other documents of the step and its events
	// may be missing, so nothing is made of it. It also matches
	// [bus.ErrUnavailable]: the event is not at fault.
	ErrHalfStored = errors.New("dedup: half a batch is stored")
	// ErrConfig is returned when a configuration or a request cannot keep its
	// promise: a retention shorter than the retries it has to cover, a
	// lifetime below the one second that servers can keep.
	ErrConfig = errors.New("dedup: configuration")
	// ErrNoBucket is returned when the bucket of marks does not exist or its
	// settings cannot keep them.
	ErrNoBucket = errors.New("dedup: bucket of marks")
	// ErrNoStream is returned when the event stream does not exist, or it or its
	// server cannot commit steps in atomic batches.
	ErrNoStream = errors.New("dedup: event stream")
	// ErrBadMark is returned when a stored mark cannot be read: it was written
	// by something else. The event is not handled until the mark is removed.
	ErrBadMark = errors.New("dedup: unreadable mark")
)

// errConflict is a store's answer when a mark is no longer at the revision
// that a write was meant to follow: nothing was written.
var errConflict = errors.New("dedup: mark has moved")
