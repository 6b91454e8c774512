package terminal

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// Age says how long ago t was, seen from now: "3m ago". The zero time is "-"; a
// time in the future, by another machine's clock, is "now".
func Age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

// Clock writes when t was, in local time to the millisecond, and the date if that was
// not today.
func Clock(now, t time.Time) string {
	now, t = now.Local(), t.Local()
	if now.Year() == t.Year() && now.YearDay() == t.YearDay() {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

// Number writes n with thousands separators: 10,000.
func Number[T ~int | ~int64 | ~uint64](n T) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	var sb strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			sb.WriteByte(',')
		}
		sb.WriteRune(d)
	}
	return sign + sb.String()
}

// Count writes n with the word that fits: "1 letter", "2,000 letters".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + many
}

// Wrap breaks text between words, so that no line is longer than so many columns if its
// words allow that. 0 is no limit. Lines after the first one begin with indent blanks;
// those with which the text begins stay.
func Wrap(text string, columns, indent int) string {
	var sb strings.Builder
	used := len(text) - len(strings.TrimLeft(text, " "))
	sb.WriteString(text[:used])
	for i, word := range strings.Fields(text) {
		w := lipgloss.Width(word)
		switch {
		case i == 0:
		case columns > 0 && used+1+w > columns:
			sb.WriteString("\n" + strings.Repeat(" ", indent))
			used = indent
		default:
			sb.WriteByte(' ')
			used++
		}
		sb.WriteString(word)
		used += w
	}
	return sb.String()
}

// Size writes a number of bytes: 812 B, 1.2 KiB, 3.4 MiB.
func Size(bytes int) string {
	switch n := float64(bytes); {
	case bytes < 1<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%.1f KiB", n/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	}
}

// previewBytes is how much of binary data is shown.
const previewBytes = 256

// Data shows a message's data as lines: text exactly as it is, but for what
// [Printable] escapes; anything that is not UTF-8 as the beginning of a hex dump.
func Data(data []byte) []string {
	if len(data) == 0 {
		return []string{"(empty)"}
	}
	if utf8.Valid(data) {
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		for i, line := range lines {
			lines[i] = Printable(line)
		}
		return lines
	}
	shown := data[:min(len(data), previewBytes)]
	lines := strings.Split(strings.TrimSuffix(hex.Dump(shown), "\n"), "\n")
	if len(shown) < len(data) {
		lines = append(lines, fmt.Sprintf("… %s more", Size(len(data)-len(shown))))
	}
	return lines
}
