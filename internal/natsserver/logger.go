package natsserver

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
)

var _ server.Logger = (*logger)(nil)

// logger passes the server's log on. The server's own idea of a fatal error is
// to log it and go on half started, so the first one is kept for [Start].
type logger struct {
	log   zerolog.Logger
	fatal chan string // one slot
}

func (l *logger) Noticef(format string, v ...any) { write(l.log.Debug(), format, v) }
func (l *logger) Warnf(format string, v ...any)   { write(l.log.Warn(), format, v) }
func (l *logger) Errorf(format string, v ...any)  { write(l.log.Error(), format, v) }
func (l *logger) Debugf(format string, v ...any)  { write(l.log.Debug(), format, v) }
func (l *logger) Tracef(format string, v ...any)  { write(l.log.Trace(), format, v) }

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
		write(l.log.Error(), format, v)
	}
}

func write(e *zerolog.Event, format string, v []any) {
	e.Str("server_message", fmt.Sprintf(format, v...)).Msg("nats server")
}
