package event

import "time"

// MaxErrorText is how many bytes of an error's text an [Attempt] keeps.
const MaxErrorText = 1024

// Attempt is one failed try to handle an event, as ledgers keep it and dead
// letters tell it.
type Attempt struct {
	// Number counts from 1 and restarts with each replay.
	Number int `json:"n"`
	// At is when the attempt failed, by the worker's clock: for people, never compared.
	At time.Time `json:"at"`
	// Class is a short stable name of the kind of error: the Go type of the
	// innermost error, or one that the handler chose.
	Class string `json:"class"`
	// Error is the text, cut to [MaxErrorText].
	Error string `json:"error"`
	// Reason is a dead-letter reason when this attempt was the last allowed
	// one ("permanent"), else empty.
	Reason string `json:"reason,omitempty"`
	// Host names the worker.
	Host string `json:"host,omitempty"`
}

// Reasons for which a message is dead-lettered (third subject token).
const (
	ReasonDecode    = "decode"    // the message is not a CloudEvent, or its data does not fit
	ReasonPermanent = "permanent" // the handler said so
	ReasonExhausted = "exhausted" // all attempts failed
	ReasonCrashLoop = "crashloop" // the handler took the process down again and again
	ReasonExpired   = "expired"   // its expirytime passed before it was handled
)
