package hopbench

import "errors"

var (
	// ErrConfig is returned when a setting makes no sense.
	ErrConfig = errors.New("hop: configuration")
	// ErrExists is returned when the server has streams of the stage's prefix
	// already: they are somebody's, and left as they are.
	ErrExists = errors.New("hop: prefix is in use")
	// ErrUnverified is returned when what is stored is not what a run has to
	// store: each outgoing event once.
	ErrUnverified = errors.New("hop: wrong result")
	// ErrStalled is returned when a run makes no progress.
	ErrStalled = errors.New("hop: no progress")
)
