package durable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

var (
	// ErrConfig is matched when a durable cannot be what this process needs, and
	// a person has to change one of them. It is consumer.ErrConfig.
	ErrConfig = errors.New("consumer: configuration")
	// ErrNone is matched by [Narrow] for a consumer without a durable. It is
	// consumer.ErrNoDurable.
	ErrNone = errors.New("consumer: no durable")
)

const (
	// Timeout is how long one look at a durable, or one change of it, may take.
	Timeout = 5 * time.Second
	// RetryAfter is how long to wait before a failed bind is tried again.
	RetryAfter = 500 * time.Millisecond
)

// Config says whose durable it is and what this process needs of it. All fields
// but Start and Logger are required.
type Config struct {
	Bus *bus.Bus
	// Ledger of the consumer, which remembers the subjects that it has been given.
	Ledger dedup.Ledger
	// Consumer is the durable's name.
	Consumer event.Consumer
	Stream   string
	// Subjects are the filters that this process needs, as in "events.order.placed.v1.>".
	Subjects []string
	// Lease is the least AckWait.
	Lease time.Duration
	// MaxAckPending is the least that the durable allows.
	MaxAckPending int
	// Start of a consumer that is new on the stream. Defaults to all that it keeps.
	Start Start
	// Logger defaults to silence.
	Logger zerolog.Logger
}

// Durable is the durable of one consumer on one stream. It is safe for
// concurrent use.
type Durable struct {
	cfg        Config
	window     atomic.Int64 // the MaxAckPending that the durable has
	waiting    atomic.Uint64
	waitLogged atomic.Bool // the log has the durable's longer AckWait
	catchingUp atomic.Bool // there may be a durable that catches up

	mu         sync.Mutex
	remembered []string          // subjects that the ledger was told
	dropped    map[string]uint64 // by subject: up to this sequence
}

// New does no I/O.
func New(cfg Config) *Durable { return &Durable{cfg: cfg} }

// Name of the durable.
func (d *Durable) Name() string { return string(d.cfg.Consumer) }

// MaxAckPending is what the durable had at the last bind, 0 before the first one.
func (d *Durable) MaxAckPending() int64 { return d.window.Load() }

// Waiting is how many messages were not acknowledged when the durable was bound first.
func (d *Durable) Waiting() uint64 { return d.waiting.Load() }

// Bind brings the durable to what this process needs: it makes one that is
// missing, adds subjects, and raises AckWait and MaxAckPending. A durable that is
// right is only looked at. An error that matches [ErrConfig] is a person's to
// mend; others are those of [bus.Bus.Ask] or of the ledger.
func (d *Durable) Bind(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for {
		have, err := d.info(ctx)
		switch {
		case err != nil:
		case have == nil:
			if err = d.create(ctx); err == nil {
				continue // and adopt it, with what create has left out
			}
		default:
			err = d.adopt(ctx, have)
		}
		if ctx.Err() == nil && (errors.Is(err, jetstream.ErrConsumerExists) || errors.Is(err, jetstream.ErrConsumerDoesNotExist)) {
			continue // another replica was faster
		}
		if err != nil {
			return fmt.Errorf("consumer: %s: durable on stream %s: %w", d.cfg.Consumer, d.cfg.Stream, err)
		}
		return nil
	}
}

func (d *Durable) info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	return d.Find(ctx, d.Name())
}

// Find returns the durable, or the one that catches up for it, as it is at the
// server; nil if there is none of that name. Errors are those of Bind.
func (d *Durable) Find(ctx context.Context, name string) (*jetstream.ConsumerInfo, error) {
	found, err := Look(ctx, d.cfg.Bus, d.cfg.Stream, name)
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, d.unfit(name, "it is a push consumer", "a pull consumer")
	}
	return found, err
}

// Look returns a durable, nil if there is none.
func Look(ctx context.Context, b *bus.Bus, stream, name string) (*jetstream.ConsumerInfo, error) {
	var found jetstream.Consumer
	err := b.Ask(ctx, "CONSUMER.INFO."+stream+"."+name, func(ctx context.Context) (err error) {
		found, err = b.JetStream().Consumer(ctx, stream, name)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return found.CachedInfo(), nil
}

// update changes a durable that exists.
func update(ctx context.Context, b *bus.Bus, stream string, cfg jetstream.ConsumerConfig) error {
	return b.Ask(ctx, "CONSUMER.CREATE."+stream+"."+cfg.Durable, func(ctx context.Context) error {
		_, err := b.JetStream().UpdateConsumer(ctx, stream, cfg)
		return err
	})
}

// Remove deletes a durable. One that is gone already is no error.
func Remove(ctx context.Context, b *bus.Bus, stream, name string) error {
	err := b.Ask(ctx, "CONSUMER.DELETE."+stream+"."+name, func(ctx context.Context) error {
		return b.JetStream().DeleteConsumer(ctx, stream, name)
	})
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	return err
}

// make creates a durable, and returns how many messages it will be given of those that
// are stored. It is no error when there is one just like it.
func (d *Durable) make(ctx context.Context, cfg jetstream.ConsumerConfig) (pending uint64, err error) {
	err = d.cfg.Bus.Ask(ctx, "CONSUMER.CREATE."+d.cfg.Stream+"."+cfg.Durable, func(ctx context.Context) error {
		made, err := d.cfg.Bus.JetStream().CreateConsumer(ctx, d.cfg.Stream, cfg)
		if err == nil {
			pending = made.CachedInfo().NumPending
		}
		return err
	})
	return pending, err
}

func (d *Durable) beginning() Beginning {
	return Beginning{Bus: d.cfg.Bus, Ledger: d.cfg.Ledger, Consumer: d.cfg.Consumer, Stream: d.cfg.Stream, Start: d.cfg.Start}
}

// needs are the settings without which this process does not work. MaxDeliver is
// unlimited: the server never drops a message, the ledger counts the attempts.
func (d *Durable) needs(name string, filters []string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        name,
		Description:    "farandole consumer " + d.Name(),
		FilterSubjects: filters,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        d.cfg.Lease,
		MaxDeliver:     -1,
		MaxAckPending:  d.cfg.MaxAckPending,
	}
}

// create makes the durable. A new consumer begins at its Start. One that has handled events before, and whose durable is gone, starts no earlier
// than its ledger remembers: what is older may have taken effect.
func (d *Durable) create(ctx context.Context) error {
	cfg := d.needs(d.Name(), d.cfg.Subjects)
	handled, _, err := d.handled(ctx)
	if err != nil {
		return err
	}
	began, err := d.beginning().Since(ctx, len(handled) == 0)
	if err != nil {
		return err
	}
	startAt(&cfg, began)
	var again []string
	for _, f := range d.cfg.Subjects {
		if among(handled, event.SubjectsCollide, f) {
			again = append(again, f)
		}
	}
	if len(again) > 0 {
		cfg.FilterSubjects = again
		if err := d.startRemembered(ctx, &cfg, began); err != nil {
			return err
		}
	}
	pending, err := d.make(ctx, cfg)
	if err != nil {
		return err
	}
	d.waiting.Store(pending)
	if len(again) > 0 {
		d.logSkipped(ctx, cfg, "durable was gone and is made anew: what is older than the ledger remembers may have taken effect and is not delivered")
	}
	return nil
}

// adopt adjusts a durable that exists. Subjects that it lacks are added together
// with a durable that catches up on them.
func (d *Durable) adopt(ctx context.Context, have *jetstream.ConsumerInfo) error {
	if d.window.Load() == 0 { // not bound yet
		d.waiting.Store(max(d.waiting.Load(), have.NumPending+uint64(max(have.NumAckPending, 0))))
	}
	filters := filtersOf(have.Config)
	if err := d.check(have.Config, filters); err != nil {
		return err
	}
	filters, err := d.grow(ctx, filters)
	if err != nil {
		return err
	}
	if missing := uncovered(d.cfg.Subjects, filters); len(missing) > 0 {
		if _, err := widened(filters, missing); err != nil {
			return fmt.Errorf("%w: %w: choose subjects that do not, or remove those that no replica needs with `farandole consumer drop`", ErrConfig, err)
		}
		added, err := d.catchUpOn(ctx, filters, missing)
		if err != nil {
			return err
		}
		if filters, err = widened(filters, added); err != nil {
			return err
		}
	}
	if err := d.adjust(ctx, have.Config, filters); err != nil {
		return err
	}
	d.mu.Lock()
	d.dropped = droppedOf(have.Config.Metadata)
	first := d.remembered == nil
	d.mu.Unlock()
	if first && have.Delivered.Consumer == 0 { // else a version before the ledger heard of it has used it
		d.introduce(ctx, have.Config)
	}
	return d.remember(ctx, filters)
}

// check refuses a durable that this process cannot work with and that the server
// does not let it change. Other differences stay, such as where the durable started.
func (d *Durable) check(have jetstream.ConsumerConfig, filters []string) error {
	switch {
	case have.AckPolicy != jetstream.AckExplicitPolicy:
		return d.unfit(d.Name(), "its ack policy is "+have.AckPolicy.String(), "explicit")
	case have.ReplayPolicy != jetstream.ReplayInstantPolicy:
		return d.unfit(d.Name(), "its replay policy is "+have.ReplayPolicy.String(), "instant")
	case len(have.PriorityGroups) > 0:
		return d.unfit(d.Name(), "it has the priority groups "+strings.Join(have.PriorityGroups, ", "), "none")
	case len(filters) == 0:
		return d.unfit(d.Name(), "it has no filter and takes the whole stream", strings.Join(d.cfg.Subjects, ", "))
	}
	return nil
}

func (d *Durable) unfit(name, have, want string) error {
	return fmt.Errorf("%w: durable %s exists and does not fit: %s, want %s, and that cannot be changed: "+
		"remove it (`nats consumer rm %s %s`), and it is made anew, or choose another Name", ErrConfig, name, have, want, d.cfg.Stream, name)
}

// adjust changes the settings of a durable that have to be others, if there are any.
func (d *Durable) adjust(ctx context.Context, have jetstream.ConsumerConfig, filters []string) error {
	want := have
	want.FilterSubject, want.FilterSubjects = "", filters
	want.MaxDeliver, want.BackOff, want.InactiveThreshold = -1, nil, 0
	want.HeadersOnly = false
	want.MaxRequestBatch, want.MaxRequestExpires, want.MaxRequestMaxBytes = 0, 0, 0
	want.AckWait = max(have.AckWait, d.cfg.Lease)
	if have.MaxAckPending > 0 {
		want.MaxAckPending = max(have.MaxAckPending, d.cfg.MaxAckPending)
	}
	if want.AckWait > d.cfg.Lease && !d.waitLogged.Swap(true) {
		d.cfg.Logger.Info().Str("stream", d.cfg.Stream).Stringer("ack_wait", want.AckWait).Stringer("lease", d.cfg.Lease).
			Msg("the durable's ack wait is longer than this process's Lease, as another replica needs or needed it: after a crash others take over within the ack wait")
	}
	d.window.Store(int64(want.MaxAckPending))
	same := slices.Equal(filtersOf(have), filters) && want.MaxDeliver == have.MaxDeliver && len(have.BackOff) == 0 &&
		have.InactiveThreshold == 0 && !have.HeadersOnly && have.MaxRequestBatch == 0 && have.MaxRequestExpires == 0 &&
		have.MaxRequestMaxBytes == 0 && want.AckWait == have.AckWait && want.MaxAckPending == have.MaxAckPending
	if same {
		return nil
	}
	return update(ctx, d.cfg.Bus, d.cfg.Stream, want)
}

func filtersOf(cfg jetstream.ConsumerConfig) []string {
	if cfg.FilterSubject != "" {
		return []string{cfg.FilterSubject}
	}
	return cfg.FilterSubjects
}
