package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// memory is a ledger that knows for how long it remembers events, and for ever
// of which subjects a consumer may have handled some.
type memory interface {
	Retention() time.Duration
	Now(ctx context.Context) (time.Time, error)
	Subjects(ctx context.Context, c event.Consumer) (subjects []string, ok bool, err error)
	Remember(ctx context.Context, c event.Consumer, subjects []string) error
}

// bind brings the durable to what this process needs. All replicas share it,
// old versions and new ones, so a bind takes nothing away that another may
// need: filters are only added, the longest lease and the largest MaxAckPending
// win, what others have set besides stays. A durable that is right is only looked at.
func (c *Consumer) bind(ctx context.Context, s source) error {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	for {
		have, err := c.lookUp(ctx, s.stream, s.durable)
		switch {
		case err != nil:
		case have == nil:
			if err = c.create(ctx, s); err == nil {
				continue // and adopt it, with what create has left out
			}
		default:
			err = c.adopt(ctx, s, have)
		}
		if ctx.Err() == nil && (errors.Is(err, jetstream.ErrConsumerExists) || errors.Is(err, jetstream.ErrConsumerDoesNotExist)) {
			continue // another replica was faster
		}
		if err != nil {
			return fmt.Errorf("consumer: %s: durable on stream %s: %w", c.cfg.Name, s.stream, err)
		}
		return nil
	}
}

// lookUp returns a durable, nil if there is none.
func (c *Consumer) lookUp(ctx context.Context, stream, durable string) (*jetstream.ConsumerInfo, error) {
	found, err := look(ctx, c.bus, stream, durable)
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, c.unfit(stream, durable, "it is a push consumer", "a pull consumer")
	}
	return found, err
}

func look(ctx context.Context, b *bus.Bus, stream, durable string) (*jetstream.ConsumerInfo, error) {
	var found jetstream.Consumer
	err := b.Ask(ctx, "CONSUMER.INFO."+stream+"."+durable, func(ctx context.Context) (err error) {
		found, err = b.JetStream().Consumer(ctx, stream, durable)
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

// make creates a durable; it exists already if it is as cfg says.
func (c *Consumer) make(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	return c.bus.Ask(ctx, "CONSUMER.CREATE."+stream+"."+cfg.Durable, func(ctx context.Context) error {
		_, err := c.bus.JetStream().CreateConsumer(ctx, stream, cfg)
		return err
	})
}

// needs are the settings of a durable without which this process does not work.
// MaxDeliver is unlimited: the server never drops, the ledger counts.
func (c *Consumer) needs(durable string, filters []string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:        durable,
		Description:    "farandole consumer " + string(c.cfg.Name),
		FilterSubjects: filters,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        c.cfg.Lease,
		MaxDeliver:     -1,
		MaxAckPending:  c.cfg.MaxAckPending,
	}
}

// create makes the durable. A new consumer gets all that the stream keeps. One
// that has handled events before, and whose durable is gone, starts no earlier
// than its ledger remembers: what is older may have taken effect.
func (c *Consumer) create(ctx context.Context, s source) error {
	cfg := c.needs(s.durable, s.filters)
	known, _, err := c.known(ctx, s.stream)
	if err != nil {
		return err
	}
	var again []string
	for _, f := range s.filters {
		if among(known, overlaps, f) {
			again = append(again, f)
		}
	}
	if len(again) > 0 {
		cfg.FilterSubjects = again
		if err := c.startRemembered(ctx, &cfg); err != nil {
			return err
		}
	}
	if err := c.make(ctx, s.stream, cfg); err != nil {
		return err
	}
	if len(again) > 0 {
		c.tellSkipped(ctx, s.stream, cfg, "durable was gone and is made anew: what is older than the ledger remembers may have taken effect and is not delivered")
	}
	return nil
}

// known returns the subjects on a stream of which this consumer may have handled
// events; ok is false if the ledger was never told, and true if it cannot be.
func (c *Consumer) known(ctx context.Context, stream string) (subjects []string, ok bool, err error) {
	m, remembers := c.ledger.(memory)
	if !remembers {
		return nil, true, nil
	}
	all, ok, err := m.Subjects(ctx, c.cfg.Name)
	for _, s := range all {
		if on, subject, _ := strings.Cut(s, " "); on == stream {
			subjects = append(subjects, subject)
		}
	}
	return subjects, ok, err
}

// remember tells the ledger what this consumer is given from now on, before the
// first event of it is handled.
func (c *Consumer) remember(ctx context.Context, stream string, filters []string) error {
	m, remembers := c.ledger.(memory)
	if !remembers {
		return nil
	}
	subjects := make([]string, len(filters))
	for i, f := range filters {
		subjects[i] = stream + " " + f
	}
	if c.durables.remembered(subjects) {
		return nil
	}
	if err := m.Remember(ctx, c.cfg.Name, subjects); err != nil {
		return err
	}
	c.durables.remember(subjects)
	return nil
}

// adopt adjusts a durable that exists. Subjects that it lacks are added
// together with a durable that catches up on them (see catchup.go).
func (c *Consumer) adopt(ctx context.Context, s source, have *jetstream.ConsumerInfo) error {
	filters := filtersOf(have.Config)
	if err := c.check(s, have.Config, filters); err != nil {
		return err
	}
	if missing := uncovered(s.filters, filters); len(missing) > 0 {
		all, err := widened(filters, missing)
		if err != nil {
			return fmt.Errorf("%w: %w: choose subjects that do not, or remove those that no replica needs with `farandole consumer drop`", ErrConfig, err)
		}
		added, err := c.catchUpOn(ctx, s, filters, missing)
		if err != nil {
			return err
		}
		if len(added) < len(missing) {
			all, err = widened(filters, added)
			if err != nil {
				return err
			}
		}
		filters = all
	}
	if err := c.adjust(ctx, s.stream, have.Config, filters); err != nil {
		return err
	}
	c.durables.drop(s.stream, droppedOf(have.Config.Metadata))
	return c.remember(ctx, s.stream, filters)
}

// check refuses a durable that this process cannot work with and the server
// does not let it change. What differs besides is left as it is, such as the
// place where the durable once started.
func (c *Consumer) check(s source, have jetstream.ConsumerConfig, filters []string) error {
	switch {
	case have.AckPolicy != jetstream.AckExplicitPolicy:
		return c.unfit(s.stream, s.durable, "its ack policy is "+have.AckPolicy.String(), "explicit")
	case have.ReplayPolicy != jetstream.ReplayInstantPolicy:
		return c.unfit(s.stream, s.durable, "its replay policy is "+have.ReplayPolicy.String(), "instant")
	case len(have.PriorityGroups) > 0:
		return c.unfit(s.stream, s.durable, "it has the priority groups "+strings.Join(have.PriorityGroups, ", "), "none")
	case len(filters) == 0:
		return c.unfit(s.stream, s.durable, "it has no filter and takes the whole stream", strings.Join(s.filters, ", "))
	}
	return nil
}

func (c *Consumer) unfit(stream, durable, have, want string) error {
	return fmt.Errorf("%w: durable %s exists and does not fit: %s, want %s, and that cannot be changed: "+
		"remove it (`nats consumer rm %s %s`), and it is made anew, or choose another Name", ErrConfig, durable, have, want, stream, durable)
}

// adjust changes what has to be of a durable's settings, if anything has to.
func (c *Consumer) adjust(ctx context.Context, stream string, have jetstream.ConsumerConfig, filters []string) error {
	want := have
	want.FilterSubject, want.FilterSubjects = "", filters
	want.MaxDeliver, want.BackOff, want.InactiveThreshold = -1, nil, 0
	want.HeadersOnly = false
	want.MaxRequestBatch, want.MaxRequestExpires, want.MaxRequestMaxBytes = 0, 0, 0
	want.AckWait = max(have.AckWait, c.cfg.Lease)
	if have.MaxAckPending > 0 {
		want.MaxAckPending = max(have.MaxAckPending, c.cfg.MaxAckPending)
	}
	if want.AckWait > c.cfg.Lease && c.durables.first(stream) {
		c.log.Info().Str("stream", stream).Dur("ack_wait", want.AckWait).Dur("lease", c.cfg.Lease).
			Msg("the durable's ack wait is longer than this process's Lease, as another replica needs or needed it: after a crash others take over within the ack wait")
	}
	c.window.Store(int64(want.MaxAckPending))
	same := slices.Equal(filtersOf(have), filters) && want.MaxDeliver == have.MaxDeliver && len(have.BackOff) == 0 &&
		have.InactiveThreshold == 0 && !have.HeadersOnly && have.MaxRequestBatch == 0 && have.MaxRequestExpires == 0 &&
		have.MaxRequestMaxBytes == 0 && want.AckWait == have.AckWait && want.MaxAckPending == have.MaxAckPending
	if same {
		return nil
	}
	return c.bus.Ask(ctx, "CONSUMER.CREATE."+stream+"."+want.Durable, func(ctx context.Context) error {
		_, err := c.bus.JetStream().UpdateConsumer(ctx, stream, want)
		return err
	})
}

func filtersOf(cfg jetstream.ConsumerConfig) []string {
	if cfg.FilterSubject != "" {
		return []string{cfg.FilterSubject}
	}
	return cfg.FilterSubjects
}

// droppedKey begins the keys of a durable's metadata that say up to which
// sequence an operator has dropped the events of a subject.
const droppedKey = "farandole-dropped "

// droppedOf reads them.
func droppedOf(metadata map[string]string) map[string]uint64 {
	var dropped map[string]uint64
	for key, value := range metadata {
		subject, ok := strings.CutPrefix(key, droppedKey)
		sequence, err := strconv.ParseUint(value, 10, 64)
		if !ok || err != nil {
			continue
		}
		if dropped == nil {
			dropped = map[string]uint64{}
		}
		dropped[subject] = sequence
	}
	return dropped
}

// durables is what this process knows of its durables.
type durables struct {
	mu      sync.Mutex
	known   map[string]bool              // subjects that the ledger was told
	dropped map[string]map[string]uint64 // by stream and subject: up to this sequence
	seen    map[string]bool              // streams whose ack wait was told
	looks   map[string]bool              // streams on which something may be to catch up on
}

func (d *durables) remembered(subjects []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.ContainsFunc(subjects, func(s string) bool { return !d.known[s] })
}

func (d *durables) remember(subjects []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string]bool{}
	}
	for _, s := range subjects {
		d.known[s] = true
	}
}

// first reports whether a stream is asked for the first time.
func (d *durables) first(stream string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen[stream] {
		return false
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[stream] = true
	return true
}

func (d *durables) drop(stream string, dropped map[string]uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dropped == nil {
		d.dropped = map[string]map[string]uint64{}
	}
	d.dropped[stream] = dropped
}

// isDropped reports whether an operator has dropped the event that m is.
func (d *durables) isDropped(m *delivery) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for subject, sequence := range d.dropped[m.stream] {
		if m.sequence <= sequence && covers(subject, m.msg.Subject) {
			return true
		}
	}
	return false
}

// look says that there may be a durable that catches up on a stream, until [durables.leave].
func (d *durables) look(stream string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.looks == nil {
		d.looks = map[string]bool{}
	}
	d.looks[stream] = true
}

func (d *durables) leave(stream string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.looks, stream)
}

func (d *durables) looking(stream string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.looks[stream]
}

// tellRetention says at start that the stream keeps events for longer than the
// ledger remembers them: a copy that comes later takes effect again.
func (c *Consumer) tellRetention(stream jetstream.StreamConfig) {
	m, ok := c.ledger.(memory)
	if !ok || stream.MaxAge > 0 && stream.MaxAge <= m.Retention() {
		return
	}
	keeps := "for ever"
	if stream.MaxAge > 0 {
		keeps = stream.MaxAge.String()
	}
	c.log.Info().Str("stream", stream.Name).Str("stream_keeps", keeps).Stringer("ledger_remembers", m.Retention()).
		Msg("the ledger forgets events that the stream still has: a copy that comes later than it remembers takes effect again")
}

// dropped ends an event that an operator has dropped while it was on its way.
func (c *Consumer) dropped(d *delivery) fate {
	if err := d.term("dropped by an operator"); err != nil {
		c.eventLog(d, c.log.Warn()).Err(err).Msg("term not sent, the redelivery will be dropped")
	}
	return fate{outcome: Dropped}
}
