//go:build race

package e2e_test

// raceEnabled says that this test binary has the race detector; then the
// program gets it, too.
const raceEnabled = true
