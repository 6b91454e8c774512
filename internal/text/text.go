// Package text has what several packages do to texts that others wrote.
package text

import "unicode/utf8"

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
