// Package text has what several packages do to texts that others wrote.
package text

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Cut shortens s to at most n bytes, not inside a rune. A negative n is 0.
func Cut(s string, n int) string {
	n = max(n, 0)
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Quote quotes s for an error: control bytes are escaped, and of a long text the
// first 64 bytes and the length are shown.
func Quote(s string) string {
	const most = 64
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:most], len(s))
}
