package durable

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

const (
	// slack is how much later than the beginning of the ledger's memory a durable
	// starts, at most: marks go on ending while it delivers.
	slack = time.Minute
	// countIdle is how long a consumer that only counts lives.
	countIdle = 10 * time.Second
)

// handled returns the subjects of the stream of which this consumer may have
// handled events. told is false if the ledger was never told any, on any stream.
func (d *Durable) handled(ctx context.Context) (subjects []string, told bool, err error) {
	all, told, err := d.cfg.Ledger.Subjects(ctx, d.cfg.Consumer)
	for _, s := range all {
		if stream, subject, _ := strings.Cut(s, " "); stream == d.cfg.Stream {
			subjects = append(subjects, subject)
		}
	}
	return subjects, told, err
}

// introduce logs what a consumer is given that the ledger has not heard of.
func (d *Durable) introduce(ctx context.Context, have jetstream.ConsumerConfig) {
	handled, _, err := d.handled(ctx)
	if err != nil || len(handled) > 0 {
		return // what is wrong with the ledger is told by remember
	}
	var since time.Time
	if have.OptStartTime != nil {
		since = *have.OptStartTime
	}
	d.beginning().LogOld(ctx, d.cfg.Logger, d.Waiting(), since)
}

// remember tells the ledger what this consumer is given from now on. It comes
// before the first event of it is handled.
func (d *Durable) remember(ctx context.Context, filters []string) error {
	d.mu.Lock()
	told := d.remembered
	d.mu.Unlock()
	if len(uncovered(filters, told)) == 0 {
		return nil
	}
	subjects := make([]string, len(filters))
	for i, f := range filters {
		subjects[i] = d.cfg.Stream + " " + f
	}
	if err := d.cfg.Ledger.Remember(ctx, d.cfg.Consumer, subjects); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remembered = filters
	return nil
}

// startRemembered makes a durable start where the ledger's memory does, and not before
// the consumer began.
func (d *Durable) startRemembered(ctx context.Context, cfg *jetstream.ConsumerConfig, began time.Time) error {
	now, err := d.cfg.Ledger.Now(ctx)
	if err != nil {
		return err
	}
	retention := d.cfg.Ledger.Retention()
	start := now.Add(min(retention/10, slack) - retention)
	if start.Before(began) {
		start = began
	}
	cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &start
	return nil
}

// logSkipped says how many events of each subject are stored before the start of
// a durable.
func (d *Durable) logSkipped(ctx context.Context, cfg jetstream.ConsumerConfig, text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout) // what came before may have taken most of the time
	defer cancel()
	skipped := zerolog.Dict()
	for _, f := range cfg.FilterSubjects {
		n, err := d.storedBefore(ctx, f, *cfg.OptStartTime)
		if err != nil {
			skipped = skipped.Str(f, "not counted: "+err.Error())
			continue
		}
		skipped = skipped.Uint64(f, n)
	}
	d.cfg.Logger.Warn().Str("stream", d.cfg.Stream).Stringer("retention", d.cfg.Ledger.Retention()).Time("starts_at", *cfg.OptStartTime).
		Dict("skipped", skipped).Msg(text)
}

// storedBefore counts the messages on a filter that are older than start.
func (d *Durable) storedBefore(ctx context.Context, filter string, start time.Time) (uint64, error) {
	all, err := CountPending(ctx, d.cfg.Bus, d.cfg.Stream, jetstream.ConsumerConfig{FilterSubject: filter})
	if err != nil {
		return 0, err
	}
	rest, err := CountPending(ctx, d.cfg.Bus, d.cfg.Stream, jetstream.ConsumerConfig{
		FilterSubject: filter, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &start,
	})
	return all - min(all, rest), err
}
