package fleet

import "errors"

// ErrConfig is returned by New when a setting is wrong.
var ErrConfig = errors.New("fleet: configuration")
