package cdc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/farandole/farandole/internal/logs"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/postgres/internal/target"
)

// Config are the choices of [New].
type Config struct {
	// Slot is the name of the replication slot, [a-z0-9_]{1,63}, as in shop_outbox.
	// No other database of the server may have a slot of that name. Defaults to the
	// table's name.
	Slot string
	// MaxLag is how many bytes of the server's log the slot may be behind before
	// [Feed.Health] returns an error. Defaults to 1 GiB.
	MaxLag int64
	// Metrics registers the gauges of the slot. Defaults to none.
	Metrics prometheus.Registerer
	// Logger defaults to warnings on stderr; silence is zerolog.Nop().
	Logger zerolog.Logger
}

var slotPattern = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

func (c Config) withDefaults(table string) Config {
	if c.Slot == "" {
		c.Slot = table
	}
	c.Logger = logs.Or(c.Logger, logs.Stderr)
	if c.MaxLag == 0 {
		c.MaxLag = 1 << 30
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if !slotPattern.MatchString(c.Slot) {
		errs = append(errs, fmt.Errorf("%w: Slot %q: want [a-z0-9_]{1,63}", outbox.ErrConfig, c.Slot))
	}
	if c.MaxLag < 0 {
		errs = append(errs, fmt.Errorf("%w: MaxLag %d: want a number of bytes", outbox.ErrConfig, c.MaxLag))
	}
	return errors.Join(errs...)
}

// Feed reads from Postgres's write-ahead log which rows were inserted into the outbox's
// table, by logical replication (pgoutput): their ids, transaction by transaction in the
// order of the commits. It is an [outbox.Feed].
//
// A permanent replication slot remembers on the server how far the relay has dealt with
// the rows. Of all relays that name one slot Postgres lets one read; the others stand by
// and take over.
//
// For a slot that nobody reads the server keeps its log until the disk is full: who
// stops using a feed has to [Feed.Drop] it.
type Feed struct {
	o     *outbox.Outbox
	conn  *pgx.ConnConfig
	table string // also the publication's name
	cfg   Config

	mu    sync.Mutex
	fault error // why nobody reads the slot; nil while this process or another one does
	slot  slot  // as the server has shown it last
}

var _ outbox.Feed = (*Feed)(nil)

// New does no I/O. url names the database of o, as for postgres.Open, past any pooler,
// and a role with the right REPLICATION. The first [Feed.Tail] makes publication and
// slot; the publication as o's own role, which owns the table. The error matches
// [outbox.ErrConfig].
func New(url string, o *outbox.Outbox, cfg Config) (*Feed, error) {
	table := o.Config().Prefix + "outbox"
	cfg = cfg.withDefaults(table)
	if o.Config().Dialect != outbox.Postgres {
		return nil, fmt.Errorf("%w: a feed needs an outbox in Postgres", outbox.ErrConfig)
	}
	conn, err := target.Parse(url)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return nil, err
	}
	conn.RuntimeParams["replication"] = "database"
	f := &Feed{o: o, conn: conn, table: table, cfg: cfg}
	if err := f.register(cfg.Metrics); err != nil {
		return nil, err
	}
	return f, nil
}

// Tail implements [outbox.Feed]. Its errors match [outbox.ErrFeedTaken], [ErrSetup] or
// [outbox.ErrDatabase]. If it has to make the slot, it waits for the end of all
// transactions that are writing in any database of the server.
func (f *Feed) Tail(ctx context.Context, attached func(context.Context) error, publish func(context.Context, []int64) error) error {
	err := f.tail(ctx, attached, publish)
	switch {
	case ctx.Err() != nil:
		f.report(nil)
		return nil //nolint:nilerr // it was told to end
	case errors.Is(err, outbox.ErrFeedTaken):
		f.report(nil)
	default:
		f.report(err)
	}
	return fmt.Errorf("cdc: slot %s: %w", f.cfg.Slot, err)
}

func (f *Feed) tail(ctx context.Context, attached func(context.Context) error, publish func(context.Context, []int64) error) (err error) {
	conn, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeConn(ctx, conn)) }()
	if err := f.open(ctx, conn); err != nil {
		return err
	}
	s := newStream(conn)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(running) })
	g.Go(func() error {
		if err := attached(running); err != nil {
			return err
		}
		f.report(nil)
		return s.publish(running, f.visible, publish)
	})
	g.Go(func() error { return f.observe(running) })
	err = g.Wait()
	if broken := f.unpublished(ctx, err); broken != nil {
		return broken
	}
	if conn.IsClosed() {
		return explain(err)
	}
	// So that the next one who reads does not get the latest rows again.
	return errors.Join(explain(err), explain(s.confirm(ctx)))
}

// unpublished drops the slot if err says that its position is older than the
// publication, which was made anew: Postgres would refuse to read it for ever. Rows are
// not lost with a slot: they are in the table.
func (f *Feed) unpublished(ctx context.Context, err error) error {
	if code(err) != codeUndefinedObject {
		return nil
	}
	f.cfg.Logger.Warn().Err(err).Str("slot", f.cfg.Slot).Msg("the publication was made anew; making the slot anew")
	return errors.Join(explain(err), f.drop(ctx))
}

// Drop drops slot and publication, if they exist. Rows that were not published stay
// PENDING, for a relay that polls. While a relay reads the slot the error matches
// [outbox.ErrFeedTaken]; others match [ErrSetup] or [outbox.ErrDatabase].
func (f *Feed) Drop(ctx context.Context) error {
	err := f.drop(ctx)
	if err == nil {
		_, err = f.o.DB().ExecContext(ctx, "DROP PUBLICATION IF EXISTS "+f.table)
		err = explain(err)
	}
	if err != nil {
		return fmt.Errorf("cdc: drop slot %s: %w", f.cfg.Slot, err)
	}
	return nil
}

// drop drops the slot.
func (f *Feed) drop(ctx context.Context) (err error) {
	conn, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeConn(ctx, conn)) }()
	err = pglogrepl.DropReplicationSlot(ctx, conn, f.cfg.Slot, pglogrepl.DropReplicationSlotOptions{})
	if code(err) == codeUndefinedObject {
		return nil
	}
	return explain(err)
}

// Health returns nil, or why the log is not read: the error of the last [Feed.Tail], or
// that the slot is more than MaxLag behind. A relay that stands by is healthy.
func (f *Feed) Health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return f.fault
	}
	if f.slot.lag > f.cfg.MaxLag {
		return fmt.Errorf("cdc: replication slot %s is %d bytes behind; the server keeps %d bytes of its log for it",
			f.cfg.Slot, f.slot.lag, f.slot.retained)
	}
	return nil
}

func (f *Feed) report(fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *Feed) connect(ctx context.Context) (*pgconn.PgConn, error) {
	conn, err := pgconn.ConnectConfig(ctx, &f.conn.Config)
	if err != nil {
		return nil, explain(err)
	}
	return conn, nil
}

// closeTimeout bounds closing a connection.
const closeTimeout = 5 * time.Second

// closeConn closes a connection, also when ctx has ended.
func closeConn(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return conn.Close(ctx)
}
