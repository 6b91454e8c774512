package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"
)

func TestBytes_of_messages_are_shown_escaped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "order 7: 12 €, 日本", "order 7: 12 €, 日本"},
		{"escape sequence", "\x1b[2J\x1b]0;x\x07", `\u001b[2J\u001b]0;x\u0007`},
		{"carriage return", "paid\rnot", `paid\rnot`},
		{"line feed and tab", "a\nb\tc", `a\nb\tc`},
		{"bidi override", "abc\u202egpj.exe", `abc\u202egpj.exe`},
		{"bidi isolate", "\u2066x\u2069", `\u2066x\u2069`},
		{"C1 control", "\u009b2J", `\u009b2J`},
		{"C1 control as a bare byte", "\x9b2J", `\x9b2J`},
		{"delete", "a\x7f", `a\u007f`},
		{"zero width", "pay\u200bment\ufeff", `pay\u200bment\ufeff`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"tag character", "a\U000E0041", `a\udb40\udc41`},
		{"bad UTF-8", "\xff\xfe", `\xff\xfe`},
		{"replacement character itself", "\ufffd", "\ufffd"},
		{"nul", "\x00", `\u0000`},
		{"backslash stays", `{"a":"\u001b"}`, `{"a":"\u001b"}`},
		{"empty", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := Printable(tt.in); got != tt.want {
				t.Errorf("Printable(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestNothing_unprintable_gets_through(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		out := Printable(in)
		if !isPrintable(out) {
			t.Fatalf("Printable(%q) = %q", in, out)
		}
		if Printable(out) != out {
			t.Fatalf("not stable: %q", out)
		}
	})
}

func TestLog_lines_are_printable_and_stay_JSON(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	log := zerolog.New(LogWriter{W: &buf})
	log.Info().Str("subject", "\x1b[2J\u202e\u009b\U000E0041").Msg("event")
	line, ended := strings.CutSuffix(buf.String(), "\n")
	if !ended || !isPrintable(line) {
		t.Fatalf("line %q", buf.String())
	}
	var fields map[string]string
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		t.Fatal(err)
	}
	if got, want := fields["subject"], "\x1b[2J\u202e\u009b\U000E0041"; got != want {
		t.Errorf("subject %q, want %q", got, want)
	}
}

func TestData_is_exact_text_or_a_hex_preview(t *testing.T) {
	t.Parallel()
	const number = `{"amount":9007199254740993,"z":1.0,"a":1}`
	for _, tt := range []struct {
		name string
		in   []byte
		want string
	}{
		{"exact number", []byte(number), number},
		{"lines", []byte("{\n  \"a\": 1\n}\n"), "{|  \"a\": 1|}"},
		{"escape", []byte("a\x1bb\nc"), `a\u001bb|c`},
		{"empty", nil, "(empty)"},
		{"binary", []byte{0xff, 0, 'A'}, "00000000  ff 00 41                                          |..A|"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(Data(tt.in), "|"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := Data(bytes.Repeat([]byte{0xff}, 5000)); got[len(got)-1] != "… 4.6 KiB more" {
		t.Errorf("last line %q", got[len(got)-1])
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, tt := range []struct{ got, want string }{
		{Count(1, "letter", "letters"), "1 letter"},
		{Count(2000, "letter", "letters"), "2,000 letters"},
		{Count(0, "letter", "letters"), "0 letters"},
		{Age(now, time.Time{}), "-"},
		{Age(now, now.Add(time.Hour)), "now"},
		{Age(now, now.Add(-59*time.Second)), "59s ago"},
		{Age(now, now.Add(-3*time.Minute)), "3m ago"},
		{Age(now, now.Add(-47*time.Hour)), "47h ago"},
		{Age(now, now.Add(-48*time.Hour)), "2d ago"},
		{Number(0), "0"},
		{Number(999), "999"},
		{Number(10000), "10,000"},
		{Number(-1234567), "-1,234,567"},
		{Size(812), "812 B"},
		{Size(1229), "1.2 KiB"},
		{Size(3 << 20), "3.0 MiB"},
		{Wrap("ab cd ef", 0, 0), "ab cd ef"},
		{Wrap("ab cd ef gh", 6, 2), "ab cd\n  ef\n  gh"},
		{Wrap("abcdefgh ij", 4, 0), "abcdefgh\nij"},
		{Wrap("  größe größe x", 13, 2), "  größe größe\n  x"},
		{FirstLine("panic: x\ngoroutine 1"), "panic: x …"},
		{FirstLine("plain\n"), "plain"},
		{FirstLine("a\rb\nc"), `a\rb …`},
		{Cell("abcdef", 4), "abc…"},
		{Cell("\x1b", 4), `\u0…`},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestTable_aligns_by_what_is_seen(t *testing.T) {
	t.Parallel()
	table := NewTable("ID", ">COUNT", "WHY")
	table.Row("日本", "1", "x")
	table.Row("a", "1,000", "")
	var out strings.Builder
	if _, err := table.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	table.Row("b", "2", "y") // in parts: no second header
	if _, err := table.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer("\x1b[1m", "", "\x1b[m", "").Replace(out.String())
	want := "ID    COUNT  WHY\n日本      1  x\na     1,000\nb         2  y\n"
	if plain != want {
		t.Errorf("got\n%s\nwant\n%s", plain, want)
	}
}

func TestTable_fits_the_terminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{0, 10, 40, 50, 80} {
		table := NewTable("~CONSUMER", ">LAG", "~WHY", "N").Fit(columns)
		table.Row("billing-of-everything", "12", "the card was declined by the bank", "3")
		table.Row("b", "1", "", "")
		var out strings.Builder
		if _, err := table.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(strings.NewReplacer("\x1b[1m", "", "\x1b[m", "").Replace(out.String())) {
			line = strings.TrimSuffix(line, "\n")
			if w := utf8.RuneCountInString(line); columns >= 40 && w > columns || strings.HasSuffix(line, " ") {
				t.Errorf("%d columns: %d are used by %q", columns, w, line)
			}
			if columns == 0 && strings.Contains(line, "…") {
				t.Errorf("cut without a limit: %q", line)
			}
		}
	}
}

func TestEscapeJSON_says_the_same(t *testing.T) {
	t.Parallel()
	const plain = `{"a":"é\n\u0001 \u200d"}`
	if got := EscapeJSON([]byte(plain)); string(got) != plain {
		t.Errorf("%s, want it unchanged", got)
	}
	document, err := json.Marshal("a\u202e\u009b\u007f\u2066\u00a0\u200d😀")
	if err != nil {
		t.Fatal(err)
	}
	got := EscapeJSON(document)
	if want := `"a\u202e\u009b\u007f\u2066` + "\u00a0\u200d😀\""; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestClock_says_the_date_unless_it_is_today(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for at, want := range map[time.Time]string{
		now.Add(-time.Hour):            "11:00:00.000",
		now.Add(-13 * time.Hour):       "2026-02-28 23:00:00.000",
		now.Add(-365 * 24 * time.Hour): "2025-03-01 12:00:00.000",
	} {
		if got := Clock(now, at); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestCut_says_that_something_is_missing(t *testing.T) {
	t.Parallel()
	for columns, want := range map[int]string{0: "événement", 9: "événement", 5: "évén…"} {
		if got := Cut("événement", columns); got != want {
			t.Errorf("%d columns: %s, want %s", columns, got, want)
		}
	}
}
