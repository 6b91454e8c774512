// Package logs decides where a logger that nobody has chosen writes.
package logs

import (
	"os"
	"reflect"
	"time"

	"github.com/rs/zerolog"
)

// Or returns l, or what other returns if l is the zero Logger, which nobody has chosen.
// zerolog.Nop() is not it: that is silence, asked for.
func Or(l zerolog.Logger, other func() zerolog.Logger) zerolog.Logger {
	if reflect.ValueOf(l).IsZero() {
		return other()
	}
	return l
}

// Stderr writes warnings and errors to stderr, for people.
func Stderr() zerolog.Logger {
	w := zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: time.RFC3339}
	return zerolog.New(zerolog.SyncWriter(w)).Level(zerolog.WarnLevel).With().Timestamp().Logger()
}
