package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/farandole/farandole/outbox"
)

// quiet is how long a connection may say nothing before it is asked whether it
// is still there.
const quiet = 30 * time.Second

// goodbye bounds closing a connection.
const goodbye = 5 * time.Second

// Watch wakes a relay of o when a transaction that added rows commits, in
// whatever process or language: the table's trigger notifies, and a connection
// of Watch's own to target, beside the pool, listens. It wakes once after it
// has connected, for rows added before. A pooler in front of the database must
// hand through sessions (PgBouncer in transaction mode does not); where that
// cannot be, the relay's polling is all there is.
//
// It returns when ctx ends, or with an error, matching [outbox.ErrDatabase], when
// the connection is lost; the relay calls it again.
func Watch(target string, o *outbox.Outbox) outbox.Watch {
	channel := pgx.Identifier{o.Config().Prefix + "outbox"}.Sanitize()
	return func(ctx context.Context, wake func()) error {
		err := listen(ctx, target, channel, wake)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: watch: %w", outbox.ErrDatabase, err)
	}
}

func listen(ctx context.Context, target, channel string, wake func()) (err error) {
	cfg, err := parse(target)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	for {
		wake()
		if err := await(ctx, conn); err != nil {
			return err
		}
	}
}

// await returns nil when something was notified.
func await(ctx context.Context, conn *pgx.Conn) error {
	for {
		quietly, cancel := context.WithTimeout(ctx, quiet)
		_, err := conn.WaitForNotification(quietly)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err := conn.Ping(ctx); err != nil { // nobody would tell of a connection that was cut
			return err
		}
	}
}
