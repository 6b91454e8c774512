package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/webhook"
)

// How a test tells its child process what to do.
const (
	childServer = "FARANDOLE_TEST_SERVER"
	childPrefix = "FARANDOLE_TEST_PREFIX"
	childURL    = "FARANDOLE_TEST_URL"
)

// child is a process that delivers until it is interrupted or killed. Others
// take over its event within two seconds.
func child() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := func() (err error) {
		b, err := bus.Connect(ctx, bus.Config{URL: os.Getenv(childServer), Names: event.Names{Prefix: os.Getenv(childPrefix)}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		cfg := config(os.Getenv(childURL))
		cfg.Timeout, cfg.Consumer.HandlerTimeout, cfg.Consumer.Lease = time.Second, 2*time.Second, 2*time.Second
		cfg.Consumer.Retry.MaxAttempts = 100
		w, err := webhook.New(b, cfg)
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}
