package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == consumeRole {
		return consume(ctx, args[1:], out)
	}
	if len(args) > 0 && args[0] == callRole {
		return call(ctx, args[1:], out)
	}
	opts, err := parse(args, log)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, opts, out, log)
	if err != nil {
		return err
	}
	err = b.measure(ctx)
	if closeErr := b.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return b.finish()
}
