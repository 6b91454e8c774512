package topology

import "errors"

// ErrTopology is returned when what exists at the server cannot be brought to
// what is wanted without losing data, when a subject belongs to another stream,
// or when the server refuses a stream.
var ErrTopology = errors.New("topology")
