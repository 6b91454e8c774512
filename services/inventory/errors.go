package inventory

import "errors"

var (
	// ErrNotReady is returned by Health while the stock is not seeded.
	ErrNotReady = errors.New("inventory: not ready")
	// ErrStockLost is returned by Health, and nothing is handled, while a SKU's
	// document is gone that was seeded once.
	ErrStockLost = errors.New("inventory: the stock is lost with the event stream: bring the stream back," +
		" or count the stock anew with `farandole serve inventory --reseed`")
	// ErrNotReserved is returned for the confirmation of an order that the
	// inventory has not heard of. It is tried again, then dead-lettered.
	ErrNotReserved = errors.New("inventory: nothing is reserved for the order")
	// ErrNotHeld is returned, and the event dead-lettered, when fewer pieces
	// are held than were reserved: somebody else has written the documents.
	ErrNotHeld = errors.New("inventory: fewer pieces are held than were reserved")
)
