// Package require decides what becomes of a test that needs something this
// machine may not have.
//
// Such a test skips with a plain message, unless the environment variable
// FARANDOLE_REQUIRE names the thing: then it fails, so that CI cannot pass
// without having run it. The variable is a list with commas: docker,postgres.
package require

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// What tests may need, as FARANDOLE_REQUIRE names it.
const (
	Docker   = "docker"
	Postgres = "postgres"
)

// Listed says whether FARANDOLE_REQUIRE names what.
func Listed(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("FARANDOLE_REQUIRE"), ","), what)
}

// Missing ends the test because what is not there: it skips the test, or fails
// it where that is [Listed]. The reason is for whoever reads the result.
func Missing(tb testing.TB, what, reason string) {
	tb.Helper()
	if Listed(what) {
		tb.Fatalf("FARANDOLE_REQUIRE lists %s: %s", what, reason)
	}
	tb.Skip(reason)
}
