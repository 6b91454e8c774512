package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns s with everything that is not visible text written as an
// escape, so that bytes from a message cannot move the cursor, change colours
// or reorder what an operator reads: control characters (C0, DEL, C1), bidi
// overrides, zero-width and other format characters, line separators and
// unusual blanks become \uXXXX (\t, \n and \r their short form), bytes that are
// not UTF-8 \xXX. Visible text, backslashes included, stays as it is: the
// result is for reading, not for parsing back.
func Printable(s string) string {
	if isPrintable(s) {
		return s
	}
	var sb strings.Builder
	sb.Grow(len(s) + 16)
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&sb, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			sb.WriteRune(r)
		case r == '\t':
			sb.WriteString(`\t`)
		case r == '\n':
			sb.WriteString(`\n`)
		case r == '\r':
			sb.WriteString(`\r`)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&sb, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&sb, `\u%04x`, r)
		}
		s = s[size:]
	}
	return sb.String()
}

func isPrintable(s string) bool {
	for i, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return false
			}
		}
	}
	return true
}

// Obeyed reports whether a terminal obeys r rather than show it: control
// characters (C0, DEL, C1) and those that reorder text.
func Obeyed(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// EscapeJSON writes what a terminal obeys as \uXXXX in a JSON document without
// white space between its tokens: the document says the same as before.
func EscapeJSON(document []byte) []byte {
	if bytes.IndexFunc(document, Obeyed) < 0 {
		return document
	}
	escaped := make([]byte, 0, len(document)+16)
	for _, r := range string(document) {
		if Obeyed(r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		} else {
			escaped = utf8.AppendRune(escaped, r)
		}
	}
	return escaped
}

// Cell returns s as one printable line of at most width runes, cut with an
// ellipsis.
func Cell(s string, width int) string {
	s = Printable(s)
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	runes := []rune(s)
	return string(runes[:width-1]) + "…"
}

// FirstLine returns the first line of a text, printable, with an ellipsis if
// there are more: a stack trace in one line helps nobody.
func FirstLine(s string) string {
	line, rest, more := strings.Cut(s, "\n")
	line = Printable(line)
	if more && strings.TrimSpace(rest) != "" {
		line += " …"
	}
	return line
}

// LogWriter makes log lines printable on their way to w. Escapes have the form
// of JSON escapes, so a line that was JSON stays JSON.
type LogWriter struct {
	W io.Writer
}

var _ io.Writer = LogWriter{}

// Write writes p, one or more whole lines, as one write.
func (l LogWriter) Write(p []byte) (int, error) {
	return writeLines(l.W, p, func(line []byte) []byte { return []byte(Printable(string(line))) })
}

// JSONWriter escapes what a terminal obeys in JSON documents on their way to W.
// A write has whole documents, or whole parts of one; each ends with its line.
type JSONWriter struct {
	W io.Writer
}

var _ io.Writer = JSONWriter{}

// Write writes p as one write.
func (w JSONWriter) Write(p []byte) (int, error) { return writeLines(w.W, p, EscapeJSON) }

// writeLines writes p line by line as escape makes it, in one write.
func writeLines(w io.Writer, p []byte, escape func(line []byte) []byte) (int, error) {
	var out bytes.Buffer
	for line := range bytes.Lines(p) {
		text, ended := bytes.CutSuffix(line, []byte("\n"))
		out.Write(escape(text))
		if ended {
			out.WriteByte('\n')
		}
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
