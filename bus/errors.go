package bus

import "errors"

// Errors of names and events, found before anything is sent.
var (
	// ErrInvalidType is returned when an event type is not <domain>.<event>.v<N>.
	ErrInvalidType = errors.New("bus: invalid event type")
	// ErrInvalidConsumer is returned when a consumer name is not [a-z][a-z0-9-]{0,31}.
	ErrInvalidConsumer = errors.New("bus: invalid consumer name")
	// ErrInvalidName is returned when a configured prefix or name is illegal.
	ErrInvalidName = errors.New("bus: invalid name")
	// ErrInvalidEvent is returned when an event cannot be published as it is:
	// a missing or illegal attribute, or an illegal extension name.
	ErrInvalidEvent = errors.New("bus: invalid event")
	// ErrDecode is returned when a message is not a CloudEvent of the binding.
	ErrDecode = errors.New("bus: cannot decode")
	// ErrNotAdmitted is returned for a message that somebody else has written and
	// that must not be sent as it is: it is no event on its own subject, or has a
	// header that the server would obey.
	ErrNotAdmitted = errors.New("bus: not admitted")
)

// Errors of publishing. Each one is told apart at once, not by a timeout.
var (
	// ErrDenied is returned when the connection's user may not publish to the subject.
	ErrDenied = errors.New("bus: permission denied")
	// ErrNoStream is returned when no stream stores the subject.
	ErrNoStream = errors.New("bus: no stream stores the subject")
	// ErrTooLarge is returned when the message exceeds what server or stream accept.
	ErrTooLarge = errors.New("bus: message too large")
	// ErrConflict is returned when an expected sequence did not match: somebody
	// else wrote the subject first.
	ErrConflict = errors.New("bus: conflicting write")
	// ErrDuplicate is returned when a batch holds a message whose id the stream
	// has stored within its duplicate window: nothing of the batch is stored.
	ErrDuplicate = errors.New("bus: message id is stored already")
	// ErrIDTaken is returned when the stream has another message under the message
	// id within its duplicate window, told in the text: this one is not stored.
	ErrIDTaken = errors.New("bus: message id is taken")
	// ErrIncomplete is returned when the server has not got all of a batch:
	// its leader changed meanwhile, or it lost a message that goes to another
	// stream or to none. Nothing of the batch is stored.
	ErrIncomplete = errors.New("bus: batch incomplete")
	// ErrBusy is returned when too many batches are open at the server.
	// Nothing of the batch is stored; sending it again later is safe.
	ErrBusy = errors.New("bus: too many batches open")
	// ErrStreamFull is returned when a stream with discard policy "new" is full.
	ErrStreamFull = errors.New("bus: stream is full")
	// ErrRefused is returned when the server refuses the message or request for
	// another reason, told in the text: a header that the stream does not allow,
	// for instance.
	ErrRefused = errors.New("bus: refused by the stream")
	// ErrUnavailable is returned when the server did not answer in time, says that
	// it cannot now, or the connection is down: the message may or may not be
	// stored. Publishing it again with the same message id is safe.
	ErrUnavailable = errors.New("bus: unavailable")
	// ErrClosed is returned by a closed Bus.
	ErrClosed = errors.New("bus: closed")
)

// Errors of connecting and provisioning.
var (
	// ErrConnect is returned when no connection could be made.
	ErrConnect = errors.New("bus: cannot connect")
	// ErrTopology is returned when what exists at the server cannot be brought
	// to what is wanted without losing data, or a subject belongs to another stream.
	ErrTopology = errors.New("bus: topology")
)
