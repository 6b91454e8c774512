package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// Execer is the caller's own transaction. *sql.Tx is one; postgres.Tx makes one of
// a pgx.Tx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

var _ Execer = (*sql.Tx)(nil)

// Config are the choices of [New].
type Config struct {
	// Dialect of the database. Required.
	Dialect Dialect
	// Prefix of the tables' names, [a-z][a-z0-9_]{0,39}, as in "shop_" for
	// shop_outbox. Defaults to none.
	Prefix string
	// Names make the subjects of events. Defaults to names without a prefix.
	Names event.Names
	// Source of the events that [Outbox.Seal] seals. Required for that only.
	Source string
}

var prefixPattern = regexp.MustCompile(`^([a-z][a-z0-9_]{0,39})?$`)

func (c Config) validate() error {
	var errs []error
	if c.Dialect != SQLite && c.Dialect != Postgres {
		errs = append(errs, fmt.Errorf("%w: Dialect %d: want SQLite or Postgres", ErrConfig, c.Dialect))
	}
	if !prefixPattern.MatchString(c.Prefix) {
		errs = append(errs, fmt.Errorf("%w: Prefix %q: want [a-z][a-z0-9_]{0,39}", ErrConfig, c.Prefix))
	}
	return errors.Join(errs...)
}

// Outbox writes events into transactions of one database. It is safe for
// concurrent use, and owns nothing: the database belongs to the caller.
type Outbox struct {
	db  *sql.DB
	cfg Config
	sql statements
	// wake is signalled when rows were added by this process.
	wake chan struct{}
	// room has a place for each handler that may hold a connection; nil for any number.
	room func() chan struct{}
}

// New does no I/O; [Outbox.Migrate] creates the tables. db is for all but Add,
// which uses the caller's transaction. The error matches [ErrConfig].
func New(db *sql.DB, cfg Config) (*Outbox, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Outbox{
		db: db, cfg: cfg, sql: statementsOf(cfg.Dialect, cfg.Prefix), wake: make(chan struct{}, 1),
		room: sync.OnceValue(func() chan struct{} { return roomOf(db.Stats().MaxOpenConnections) }),
	}, nil
}

// roomOf is how many handlers a pool with a limit has connections for.
func roomOf(limit int) chan struct{} {
	if limit < 4 {
		return nil
	}
	return make(chan struct{}, limit-limit/4)
}

// DB is the database.
func (o *Outbox) DB() *sql.DB { return o.db }

// Config returns the outbox's configuration.
func (o *Outbox) Config() Config { return o.cfg }

// Seal gives a draft the configured source, [event.Draft.ID] or a random id, and
// the time. A draft without an id is another event each time it is sealed;
// [event.ContentID] makes an id of content. Errors are those of [event.Names.Seal].
func (o *Outbox) Seal(d event.Draft) (event.Event, error) {
	return o.cfg.Names.Seal(d, o.cfg.Source)
}

// Add writes events into the caller's transaction; they are published after it
// has committed, and never if it rolls back. Errors match [event.ErrInvalidType]
// or [event.ErrInvalidEvent] for an event that cannot be published, before
// anything is written; [ErrDuplicate]; or [ErrDatabase], after which the
// transaction must be rolled back.
func (o *Outbox) Add(ctx context.Context, tx Execer, events ...event.Event) error {
	msgs := make([]*nats.Msg, len(events))
	for i, e := range events {
		m, err := o.cfg.Names.Message(e)
		if err != nil {
			return fmt.Errorf("outbox: add: %w", err)
		}
		msgs[i] = m
	}
	for i, m := range msgs {
		added, err := o.insert(ctx, tx, m, "")
		if err != nil {
			return fmt.Errorf("outbox: add: %w", err)
		}
		if !added {
			return fmt.Errorf("outbox: add: %w: source %q, id %q", ErrDuplicate, events[i].Source(), events[i].ID())
		}
	}
	o.Wake()
	return nil
}

// insert writes one message, of the step of c if there is one; false if its id is
// there already.
func (o *Outbox) insert(ctx context.Context, tx Execer, m *nats.Msg, c event.Consumer) (added bool, err error) {
	r, err := newRow(m)
	if err != nil {
		return false, err
	}
	say, args := o.sql.insert, []any{r.messageID, r.subject, r.key, r.headers, r.data}
	if c != "" {
		say, args = o.sql.insertStep, append(args, string(c))
	}
	result, err := tx.ExecContext(ctx, say, args...)
	if err != nil {
		return false, fmt.Errorf("%w: insert: %w", ErrDatabase, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("%w: insert: %w", ErrDatabase, err)
	}
	return n == 1, nil
}

// Wake has this process's relay look for rows at once. Add does it; others that
// insert rows with their own SQL in this process may.
func (o *Outbox) Wake() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
