package inventory

import "errors"

var (
	// ErrNotReady is returned by Health while the stock is not seeded.
	ErrNotReady = errors.New("inventory: not ready")
	// ErrNotReserved is returned for the confirmation of an order that the
	// inventory has not heard of. It is tried again, then dead-lettered.
	ErrNotReserved = errors.New("inventory: nothing is reserved for the order")
	// ErrNotHeld is returned, and the event dead-lettered, when fewer pieces
	// are held than were reserved: somebody else has written the documents.
	ErrNotHeld = errors.New("inventory: fewer pieces are held than were reserved")
)
