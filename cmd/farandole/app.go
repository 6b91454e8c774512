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

// app is what commands share: the global flags and the streams. stdout carries
// data only; whatever else there is to say goes to stderr.
type app struct {
	root *cli
	in   *bufio.Reader
	out  io.Writer // as it is: data
	json io.Writer // out, with what a terminal obeys as JSON escapes
	err  io.Writer
	// styled is out for people: without colours unless it is a terminal that
	// wants them (NO_COLOR, TERM=dumb).
	styled io.Writer
	// asks says that somebody is there to answer a question.
	asks bool
	// live says that stderr is a terminal, for progress.
	live bool
	now  func() time.Time
}

func newApp(root *cli, std streams) *app {
	styled := colorprofile.NewWriter(std.out, os.Environ())
	if os.Getenv("NO_COLOR") != "" {
		styled.Profile = colorprofile.NoTTY // no bold either
	}
	return &app{
		root: root, in: bufio.NewReader(std.in), out: std.out, json: terminal.JSONWriter{W: std.out}, err: std.err, styled: styled,
		asks: isTerminal(std.in) && isTerminal(std.err),
		live: isTerminal(std.err),
		now:  time.Now,
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// log returns the logger on stderr; level is the command's default.
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

// say writes a line for people to stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.err, format+"\n", args...)
}

// printf writes a line of human-readable data to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.styled, format+"\n", args...)
	return err
}

// confirm asks before something is destroyed. Without a terminal it refuses:
// nobody would see the question.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.asks {
		return usageErrorf("%s needs --yes: there is no terminal to ask on", question)
	}
	fmt.Fprintf(a.err, "%s? [y/N] ", question)
	answer, err := a.in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	default:
		a.say("nothing done")
		return errSilent
	}
}
