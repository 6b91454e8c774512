package main

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/outbox"
)

type dlqCmd struct {
	Outbox outboxFlags `embed:"" group:"Outbox, whose parked rows are dead letters too:"`

	List    dlqListCmd    `cmd:"" help:"List dead letters, newest first. Changes nothing."`
	Show    dlqShowCmd    `cmd:"" help:"Show one dead letter with its whole story."`
	Replay  dlqReplayCmd  `cmd:"" help:"Send dead letters back to the one consumer that failed, and parked rows to the relay. Twice is harmless."`
	Edit    dlqEditCmd    `cmd:"" help:"Change the event of one dead letter, by $EDITOR or --data, and keep its identity."`
	Discard dlqDiscardCmd `cmd:"" help:"Close dead letters for good."`
	Stats   dlqStatsCmd   `cmd:"" help:"Count dead letters by kind of failure."`
	Export  dlqExportCmd  `cmd:"" help:"Write dead letters as JSON lines, oldest first."`
	Import  dlqImportCmd  `cmd:"" help:"Store dead letters that export has written. Those that are there stay as they are."`
}

// reasons are what --reason takes.
const reasons = event.ReasonDecode + "," + event.ReasonPermanent + "," + event.ReasonExhausted + "," +
	event.ReasonCrashLoop + "," + event.ReasonExpired

// dlqFilter is shared by the commands that choose letters.
type dlqFilter struct {
	Consumer    string        `placeholder:"NAME" help:"The consumer that failed; outbox for parked rows."`
	Reason      string        `enum:",${reasons}" default:"" placeholder:"REASON" help:"One of ${reasons}."`
	Class       string        `help:"Error class of the last failure."`
	Type        string        `help:"Event type."`
	Key         string        `help:"What the event is about."`
	Fingerprint string        `placeholder:"HEX" help:"Kind of failure, as stats shows."`
	Text        string        `help:"Part of the last error's text."`
	Older       time.Duration `placeholder:"DURATION" help:"Dead-lettered longer ago than this, as in 24h."`
	Newer       time.Duration `placeholder:"DURATION" help:"Dead-lettered since this long ago."`
}

func (f dlqFilter) filter(now time.Time) dlq.Filter {
	out := dlq.Filter{
		Consumer: event.Consumer(f.Consumer), Reason: f.Reason, Class: f.Class,
		Type: event.Type(f.Type), Key: event.Key(f.Key), Fingerprint: f.Fingerprint, Text: f.Text,
	}
	if f.Older > 0 {
		out.Before = now.Add(-f.Older)
	}
	if f.Newer > 0 {
		out.After = now.Add(-f.Newer)
	}
	return out
}

// dlqSelection chooses letters to change: by id, by filter, or all.
type dlqSelection struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Ids, <consumer>.<event key> or outbox.<message id> as list shows, event keys, or how they begin."`
	All bool     `help:"Every dead letter."`
	dlqFilter
}

func (s dlqSelection) selection(now time.Time) dlq.Selection {
	f := s.filter(now)
	// "--all --consumer payment" reads as all of payment's.
	return dlq.Selection{IDs: s.IDs, Filter: f, All: s.All && f == dlq.Filter{}}
}

// withQueue runs f with the system's dead letters, and with the outbox that flags
// name, nil if there are none. Then NATS is connected to when f first needs it:
// parked rows can be seen to while it is down.
func (a *app) withQueue(ctx context.Context, f func(*dlq.Queue, *outbox.Outbox) error) error {
	if !a.root.DLQ.Outbox.given() {
		return a.withBus(ctx, "dlq", func(b *bus.Bus) error {
			q, err := letters.Open(b)
			if err != nil {
				return err
			}
			return f(q, nil)
		})
	}
	return a.withOutbox(a.root.DLQ.Outbox, func(o *outbox.Outbox) (err error) {
		var b *bus.Bus
		defer func() {
			if b != nil {
				err = errors.Join(err, b.Close())
			}
		}()
		return f(letters.OpenWith(o, func() (_ *bus.Bus, err error) {
			b, err = bus.Connect(ctx, a.root.Connection.config("dlq", a.log("warn")))
			return b, err
		}), o)
	})
}
