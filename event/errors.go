package event

import "errors"

// Errors of names and events, found before anything is sent.
var (
	// ErrInvalidType is returned when an event type is not <domain>.<event>.v<N>.
	ErrInvalidType = errors.New("event: invalid event type")
	// ErrInvalidConsumer is returned when a consumer name is not [a-z][a-z0-9-]{0,31}.
	ErrInvalidConsumer = errors.New("event: invalid consumer name")
	// ErrInvalidName is returned when a configured prefix or name is illegal.
	ErrInvalidName = errors.New("event: invalid name")
	// ErrInvalidEvent is returned when an event cannot be published as it is:
	// a missing or illegal attribute, or an illegal extension name.
	ErrInvalidEvent = errors.New("event: invalid event")
	// ErrDecode is returned when a message is not a CloudEvent of the binding.
	ErrDecode = errors.New("event: cannot decode")
	// ErrNotAdmitted is returned for a message that somebody else has written and
	// that must not be sent as it is: it is no event on its own subject, or has a
	// header that the server would obey.
	ErrNotAdmitted = errors.New("event: not admitted")
)
