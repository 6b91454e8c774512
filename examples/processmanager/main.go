package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/farandole/farandole/bus"
)

// deadline is the time that an order has.
const deadline = 15 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, bus.Config{URL: os.Getenv("NATS_URL")}, deadline)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "processmanager:", err)
		os.Exit(1)
	}
}
