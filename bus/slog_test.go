package bus_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

func TestSlogHandlerGetsTheLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := bus.SlogLogger(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})).With().Str("consumer", "payment").Logger()
	log.Debug().Msg("not wanted")
	log.Warn().Err(errors.New("down")).Int("attempt", 3).Stringer("retry_in", 1500*time.Millisecond).Dict("skipped", zerolog.Dict().Int("a", 1)).Msg("handler failed")
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	for name, want := range map[string]any{
		"level": "WARN", "msg": "handler failed", "consumer": "payment", "error": "down", "attempt": 3.0, "retry_in": "1.5s",
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if at, err := time.Parse(time.RFC3339, got["time"].(string)); err != nil || time.Since(at) > time.Minute {
		t.Errorf("time is %v, %v", got["time"], err)
	}
}

func TestSlogLevels(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := bus.SlogLogger(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	log.Trace().Msg("a")
	log.Info().Msg("b")
	log.Error().Msg("c")
	log.Log().Msg("d")
	if want := "level=DEBUG msg=a\nlevel=INFO msg=b\nlevel=ERROR msg=c\nlevel=INFO msg=d\n"; out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
}

func TestLoggerThatNobodyHasChosenIsTheBuss(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := bustest.Connect(t, bus.Config{InProcess: bustest.Server(t), Logger: zerolog.New(&out)})
	log := b.LoggerOr(zerolog.Logger{})
	log.Info().Msg("heard")
	silent := b.LoggerOr(zerolog.Nop())
	silent.Error().Msg("not heard")
	if want := "{\"level\":\"info\",\"message\":\"heard\"}\n"; out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
}
