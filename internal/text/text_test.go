package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/farandole/farandole/internal/text"
)

func TestCutKeepsRunesWhole(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "abc", "äöü", "a😀b", strings.Repeat("é", 1000), "\xff\xff\xff\xff", "a\x80\x80\x80"} {
		for n := -1; n < 12; n++ {
			got := text.Cut(s, n)
			if len(got) > max(n, 0) || !strings.HasPrefix(s, got) {
				t.Errorf("Cut(%q, %d) = %q", s, n, got)
			}
			if utf8.ValidString(s) && !utf8.ValidString(got) {
				t.Errorf("Cut(%q, %d) = %q: a rune is broken", s, n, got)
			}
		}
	}
}

func TestCutLengths(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		want int
	}{{"", 0}, {"abc", 3}, {strings.Repeat("x", 11), 10}, {strings.Repeat("é", 6), 10}, {"x" + strings.Repeat("é", 6), 9}, {strings.Repeat("\xbf", 20), 0}} {
		if got := text.Cut(tt.in, 10); len(got) != tt.want || utf8.ValidString(tt.in) != utf8.ValidString(got) && got != "" {
			t.Errorf("Cut(%q) is %q, want %d bytes", tt.in, got, tt.want)
		}
	}
}
