package inventory

import "errors"

var (
	// ErrNotReady is returned by Health while the stock is not seeded.
	ErrNotReady = errors.New("inventory: not ready")
	// ErrStockLost is returned by Health while the document of a seeded SKU is gone.
	// Events that need it are not handled until it is back.
	ErrStockLost = errors.New("inventory: the stock is lost with the event stream: bring the stream back," +
		" or count the stock anew with `farandole serve inventory --reseed`")
	// ErrNotReserved is returned for the confirmation of an order that the inventory
	// does not know. The event is tried again, after those behind it, and dead-lettered
	// after the last attempt.
	ErrNotReserved = errors.New("inventory: nothing is reserved for the order")
	// ErrNotHeld is returned when a SKU has fewer pieces held than the order has
	// reserved. Somebody else has changed the documents. The event is dead-lettered.
	ErrNotHeld = errors.New("inventory: fewer pieces are held than the order has reserved")
)
