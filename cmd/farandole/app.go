package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"github.com/farandole/farandole/internal/terminal"
)

// app is what all commands share: the global flags and the standard streams. Data go
// to stdout, everything else to stderr.
type app struct {
	root *cli
	in   *bufio.Reader
	out  io.Writer // stdout, unchanged
	json io.Writer // stdout; what controls a terminal is written as JSON escapes
	err  io.Writer
	// styled is stdout for people: with colours if it is a terminal and neither
	// NO_COLOR nor TERM=dumb is set.
	styled io.Writer
	// asks says that stdin and stderr are terminals: somebody can answer a question.
	asks bool
	// live says that stderr is a terminal, which can show a progress bar.
	live bool
	// shows says that stdout is a terminal.
	shows bool
	// columns is how wide that terminal is; 0 without one, and tables are as wide as they are.
	columns int
	now     func() time.Time
}

func newApp(root *cli, std streams) *app {
	styled := styledWriter(std.out)
	return &app{
		root: root, in: bufio.NewReader(std.in), out: std.out, json: terminal.JSONWriter{W: std.out}, err: std.err, styled: styled,
		asks:  isTerminal(std.in) && isTerminal(std.err),
		live:  isTerminal(std.err),
		shows: isTerminal(std.out), columns: columnsOf(std.out),
		now: time.Now,
	}
}

func columnsOf(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// table is [terminal.NewTable] for stdout: it fits the terminal.
func (a *app) table(columns ...string) *terminal.Table {
	return terminal.NewTable(columns...).Fit(a.columns)
}

// wrap breaks text for stdout between words, and indents what goes on below.
func (a *app) wrap(text string, indent int) string { return terminal.Wrap(text, a.columns, indent) }

// styledWriter passes colours to w if it is a terminal that shows them.
func styledWriter(w io.Writer) *colorprofile.Writer {
	styled := colorprofile.NewWriter(w, os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		styled.Profile = colorprofile.NoTTY // no bold either
	}
	return styled
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// log returns the logger, which writes to stderr. level is used unless --log-level
// is given.
func (a *app) log(level string) zerolog.Logger {
	if a.root.LogLevel != "" {
		level = a.root.LogLevel
	}
	if level == "off" {
		return zerolog.Nop()
	}
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.WarnLevel
	}
	var w io.Writer = terminal.LogWriter{W: a.err}
	if a.live {
		w = zerolog.ConsoleWriter{Out: w, NoColor: true, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(parsed).With().Timestamp().Logger()
}

// printJSON writes one JSON document, on one line.
func (a *app) printJSON(document any) error {
	e := json.NewEncoder(a.json)
	e.SetEscapeHTML(false)
	return e.Encode(document)
}

// say writes a line to stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.err, format+"\n", args...)
}

// printf writes a line of data for people to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.styled, format+"\n", args...)
	return err
}

// confirm asks a question before something is destroyed, unless yes is set. Without
// a terminal it refuses, because nobody would see the question.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.asks {
		return usageErrorf("%s needs --yes: there is no terminal to ask on", question)
	}
	yes, err := a.ask(question)
	if err == nil && !yes {
		a.say("nothing done")
		err = errSilent
	}
	return err
}

// agreed asks a question if there is somebody to answer it.
func (a *app) agreed(question string) bool {
	if !a.asks {
		return false
	}
	yes, err := a.ask(question)
	return err == nil && yes
}

func (a *app) ask(question string) (bool, error) {
	fmt.Fprintf(a.err, "%s? [y/N] ", question)
	answer, err := a.in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
