package logs_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/logs"
)

//nolint:paralleltest // stderr is the process's
func TestWarningsGoToStderrUnlessSilenced(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = w
	log := logs.Or(zerolog.Logger{}, logs.Stderr)
	silent := logs.Or(zerolog.Nop(), logs.Stderr)
	os.Stderr = before
	log.Info().Msg("not told")
	log.Warn().Str("why", "it matters").Msg("told")
	silent.Error().Msg("silenced")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || strings.Count(string(got), "\n") != 1 || !strings.HasSuffix(string(got), "WRN told why=\"it matters\"\n") {
		t.Errorf("stderr %q, %v", got, err)
	}
}
