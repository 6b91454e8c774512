package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/logs"
)

// Logger is what the bus logs to, and by default what is built on the bus does.
func (b *Bus) Logger() zerolog.Logger { return b.cfg.Logger }

// LoggerOr returns l, or the bus's logger if l is the zero Logger.
func (b *Bus) LoggerOr(l zerolog.Logger) zerolog.Logger { return logs.Or(l, b.Logger) }

// SlogLogger returns a logger whose lines go to h, for programs that log with log/slog:
//
//	bus.Config{Logger: bus.SlogLogger(slog.Default().Handler())}
func SlogLogger(h slog.Handler) zerolog.Logger { return zerolog.New(slogWriter{h}) }

// slogWriter makes records of lines.
type slogWriter struct{ handler slog.Handler }

var _ zerolog.LevelWriter = slogWriter{}

// Write takes lines without a level.
func (w slogWriter) Write(line []byte) (int, error) { return w.WriteLevel(zerolog.NoLevel, line) }

// WriteLevel hands a line on, if its level is wanted.
func (w slogWriter) WriteLevel(l zerolog.Level, line []byte) (int, error) {
	ctx, level := context.Background(), slogLevel(l)
	if !w.handler.Enabled(ctx, level) {
		return len(line), nil
	}
	r := slog.NewRecord(time.Now(), level, "", 0)
	if err := read(&r, line); err != nil {
		r.AddAttrs(slog.String("line", string(line)))
	}
	return len(line), w.handler.Handle(ctx, r)
}

func slogLevel(l zerolog.Level) slog.Level {
	switch l {
	case zerolog.TraceLevel, zerolog.DebugLevel:
		return slog.LevelDebug
	case zerolog.WarnLevel:
		return slog.LevelWarn
	case zerolog.ErrorLevel, zerolog.FatalLevel, zerolog.PanicLevel:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// read adds the members of a line, which is a JSON object, in their order.
func read(r *slog.Record, line []byte) error {
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return err
		}
		switch name {
		case zerolog.MessageFieldName:
			r.Message, _ = value.(string)
		case zerolog.LevelFieldName, zerolog.TimestampFieldName: // the record has its own
		default:
			text, _ := name.(string)
			r.AddAttrs(slog.Any(text, value))
		}
	}
	return nil
}
