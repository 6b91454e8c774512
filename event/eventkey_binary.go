package event

import "fmt"

// BinaryKey is an event key as its 20 bytes, for where many are stored.
type BinaryKey [20]byte

// Binary returns the key's bytes. The error matches [ErrInvalidName].
func (k EventKey) Binary() (b BinaryKey, err error) {
	if len(k) != base32Lower.EncodedLen(len(b)) {
		return b, fmt.Errorf("%w: event key %q: want 32 characters", ErrInvalidName, k)
	}
	if _, err := base32Lower.Decode(b[:], []byte(k)); err != nil {
		return b, fmt.Errorf("%w: event key %q: want lower-case base32", ErrInvalidName, k)
	}
	return b, nil
}

// Key is the key as it is written.
func (b BinaryKey) Key() EventKey {
	var key [32]byte
	base32Lower.Encode(key[:], b[:])
	return EventKey(key[:])
}
