// Command farandole runs a Farandole system, publishes and shows its events, handles
// its dead letters, and audits it. See "farandole --help". docs/contract.md says
// what other programs may rely on.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/terminal"
)

// Exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	// Of a replay that waits: some events have failed again; some have not ended.
	exitFailedAgain = 3
	exitWaiting     = 4
	// exitInterrupted is what shells say of a program that Ctrl-C has ended.
	exitInterrupted = 130
)

func main() {
	// If a pipe's reader ends early ("| head -1"), SIGPIPE would kill the process at
	// any point. Ignored, it becomes the error EPIPE, with which the command ends.
	signal.Ignore(syscall.SIGPIPE)
	if err := readSecrets(); err != nil {
		fmt.Fprintf(os.Stderr, "farandole: %s\n", terminal.Printable(err.Error()))
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default action is restored, so that a second one
	// ends the process at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

// streams are the process's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run parses args, runs the command and returns the exit code. It is the whole
// program but for signals and os.Exit, so that tests can call it.
func run(ctx context.Context, args []string, std streams) (code int) {
	type exit int
	defer func() {
		// Kong calls its Exit function after --help. It panics with the exit code,
		// which is taken here.
		if r := recover(); r != nil {
			e, ok := r.(exit)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	var root cli
	parser, err := kong.New(&root,
		kong.Name("farandole"),
		kong.Description("Choreographed events on NATS JetStream, each step exactly once."),
		kong.Writers(std.out, std.err),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.ExplicitGroups(groups),
		kong.Vars{"version": versionLine(), "reasons": reasons, "concurrency": strconv.Itoa(hopbench.DefaultConcurrency)},
	)
	if err != nil {
		fmt.Fprintf(std.err, "farandole: %v\n", err)
		return exitFailed
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(std.err, "farandole: %s; try \"farandole --help\"\n", terminal.Printable(err.Error()))
		return exitUsage
	}
	if root.Connection.Wait.bare && !strings.HasPrefix(command.Command(), "dlq replay") {
		fmt.Fprintln(std.err, "farandole: --wait: want a duration, as in 5s")
		return exitUsage
	}
	command.BindTo(ctx, (*context.Context)(nil))
	if err := misplaced(command); err != nil {
		return report(std.err, err)
	}
	err = command.Run(newApp(&root, std))
	return report(std.err, err)
}

// report prints an error, on one line unless its text has several, and returns the
// exit code.
func report(w io.Writer, err error) int {
	failed := exitError{code: exitFailed}
	errors.As(err, &failed)
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE):
		return exitDone
	case errors.Is(err, errSilent):
		return failed.code
	}
	text := strings.Join(terminal.Data([]byte(err.Error())), "\n  ")
	if isUsage(err) {
		fmt.Fprintf(w, "farandole: %s\n", text)
		return exitUsage
	}
	fmt.Fprintf(w, "farandole: %s%s\n", text, advice(err))
	return failed.code
}
