package bus

import "errors"

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

// ErrConnect is returned when no connection could be made.
var ErrConnect = errors.New("bus: cannot connect")
