package idempotency

import "errors"

var (
	// ErrConfig is returned by New and NewSQL when a setting is wrong.
	ErrConfig = errors.New("idempotency: config")
	// ErrLost is returned by Complete and Release when another request has the key now, or
	// nobody: the claim has run out.
	ErrLost = errors.New("idempotency: the claim is lost")
)
