package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/backoff"
)

const (
	dialTimeout     = 2 * time.Second
	dialPause       = 150 * time.Millisecond // between two dials, about
	quietWait       = DefaultWait            // that somebody at a terminal waits without being told why
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 500 * time.Millisecond
	closeGrace      = time.Second // no more: a denied publish is never acknowledged
)

// Bus is one connection to NATS JetStream. It is safe for concurrent use.
type Bus struct {
	cfg Config
	nc  *nats.Conn
	js  jetstream.JetStream

	id      string // tells its watches from those of others
	acks    *acks
	notices *notices
	absent  absent
	inboxes inboxes

	closeOnce sync.Once
	closed    chan struct{} // closed when Close begins
	ended     chan struct{} // closed when the connection has ended

	mu        sync.Mutex
	downSince time.Time // zero while connected
	downCause error
}

// Connect dials; it waits up to cfg.Wait for a server that is not up yet, and
// then as long for its JetStream. (A dial under way when the time or ctx ends
// is not broken off: it takes up to two seconds for each server.) A wrong
// login, a certificate that is not trusted and the like are final at once.
// Errors match [ErrConnect], say what is wrong and where, and hold no secret.
// One that has to be waited out for more than five seconds is logged meanwhile.
//
// The connection then reconnects for ever, also after its login has been
// refused: a rotated password that is restored needs no restart.
// See [Bus.Health].
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	b := &Bus{
		cfg:    cfg,
		id:     rand.Text(),
		absent: absent{asking: make(chan struct{}, 1)},
		closed: make(chan struct{}),
		ended:  make(chan struct{}),
	}
	b.acks = newAcks(cfg.PublishTimeout, cfg.MaxPending, b.ended)
	b.notices = newNotices(b.acks.wake)
	if err := retry(ctx, cfg.Wait, b.telling(explainDial, b.dial)); err != nil {
		return nil, cfg.connectError(explainDial(err), err)
	}
	if err := retry(ctx, cfg.Wait, b.telling(explainJetStream, b.probe)); err != nil {
		return nil, errors.Join(cfg.connectError(explainJetStream(err), err), b.Close())
	}
	return b, nil
}

// Names returns the system's names.
func (b *Bus) Names() event.Names { return b.cfg.Names }

// Source returns the source of events sealed by this bus.
func (b *Bus) Source() string { return b.cfg.Source }

// Conn returns the connection, owned by the Bus.
func (b *Bus) Conn() *nats.Conn { return b.nc }

// APIPrefix is what the subjects of the JetStream API begin with: "$JS.API.",
// or that of the domain or account which a context of the nats CLI names.
func (b *Bus) APIPrefix() string {
	switch o := b.js.Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return defaultAPIPrefix
}

const defaultAPIPrefix = "$JS.API."

// PutSubject is where the document under key in a KV bucket (its full name) is
// written: $KV.<bucket>.<key>, mapped when JetStream is in another domain or account.
func (b *Bus) PutSubject(bucket, key string) string {
	subject := "$KV." + bucket + "." + key
	if prefix := b.APIPrefix(); prefix != defaultAPIPrefix {
		return prefix + subject
	}
	return subject
}

// JetStream returns the JetStream client on the connection.
func (b *Bus) JetStream() jetstream.JetStream { return b.js }

// Health returns nil while the connection is up, else an error that matches
// [ErrUnavailable] or [ErrClosed] and says since when it is not and why.
func (b *Bus) Health() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.nc.IsClosed():
		return ErrClosed
	case b.nc.IsConnected():
		return nil
	case b.downSince.IsZero(): // the handler is about to say so
		return fmt.Errorf("%w: connection lost just now", ErrUnavailable)
	}
	return fmt.Errorf("%w: no connection since %s (%s): %w", ErrUnavailable,
		b.downSince.UTC().Format(time.RFC3339), time.Since(b.downSince).Round(time.Second), b.downCause)
}

// Close sends what is buffered, waits up to a second for the acknowledgements
// of publishes in flight, then closes the connection and waits for its end.
// Publishes that are still waiting get [ErrClosed]. Closing twice is fine.
func (b *Bus) Close() error {
	b.closeOnce.Do(func() {
		close(b.closed)
		if b.nc.IsConnected() {
			b.acks.drain(closeGrace)
		}
		b.notices.add(busClosed, "")
		b.nc.Close()
	})
	<-b.ended
	b.acks.close()
	b.acks.writer.Wait()
	return nil
}

// dial makes the connection, once.
func (b *Bus) dial(context.Context) error {
	nc, js, err := b.cfg.dial(b.handlers()...)
	if err != nil {
		if isFinal(err) {
			return final{err}
		}
		return err
	}
	b.nc = nc
	b.acks.nc = nc
	b.js, err = js(b.nc)
	if err != nil {
		b.nc.Close()
		return final{err}
	}
	return nil
}

// probe finds out whether JetStream answers. A user who may not ask is fine.
func (b *Bus) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := b.Ask(ctx, "INFO", func(ctx context.Context) error {
		_, err := b.js.AccountInfo(ctx)
		return err
	})
	switch {
	case errors.Is(err, ErrDenied):
		return nil
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		// In a cluster the servers that have it may not be up yet.
		errors.Is(err, jetstream.ErrJetStreamNotEnabled) && b.nc.ConnectedClusterName() == "":
		return final{err}
	}
	return err
}

func (b *Bus) handlers() []nats.Option {
	log := b.cfg.Logger
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.notices.forget() // here, before the next connection can be refused anything
			b.acks.fail(nats.ErrDisconnected)
			b.down(err)
			select {
			case <-b.closed: // by Close: nothing to warn of
			default:
				log.Warn().Err(err).Msg("disconnected from nats")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.up()
			log.Info().Str("server", nc.ConnectedAddr()).Msg("reconnected to nats")
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			b.down(err)
			log.Debug().Err(err).Msg("cannot reconnect to nats")
		}),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			b.asyncError(nc, log, err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(b.ended) }),
	}
}

// asyncError passes a permission violation on to whoever waits for the answer
// and a refused login to Health, and logs what has nobody to tell.
func (b *Bus) asyncError(nc *nats.Conn, log zerolog.Logger, err error) {
	inbox := cmp.Or(nc.Opts.InboxPrefix, "_INBOX")
	switch {
	case b.notices.noteViolation(err, inbox+".", b.acks.subscription()):
	case isRefusedLogin(err):
		b.down(err)
	default:
		log.Warn().Err(err).Msg("nats connection error")
	}
}

func (b *Bus) down(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.downSince.IsZero() {
		b.downSince = time.Now()
	}
	switch {
	case err != nil:
		b.downCause = err
	case b.downCause == nil:
		b.downCause = nats.ErrDisconnected
	}
}

func (b *Bus) up() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.downSince, b.downCause = time.Time{}, nil
}

// final marks an error that no retry can mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// telling is fn, and logs once what is waited for if that takes long.
func (b *Bus) telling(explain func(error) string, fn func(context.Context) error) func(context.Context) error {
	began, told := time.Now(), false
	return func(ctx context.Context) error {
		err := fn(ctx)
		waited := time.Since(began)
		if err != nil && !errors.As(err, new(final)) && ctx.Err() == nil && waited > quietWait && !told {
			told = true
			b.cfg.Logger.Warn().Err(b.cfg.connectError(explain(err), err)).Stringer("up_to", (b.cfg.Wait - waited).Round(time.Second)).Msg("waiting for nats")
		}
		return err
	}
}

// retry repeats fn, with jitter, until it succeeds, its error is final, or the
// time or ctx ends; it returns fn's last error.
func retry(ctx context.Context, within time.Duration, fn func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := fn(bounded)
		if err == nil || errors.As(err, new(final)) {
			return err
		}
		if backoff.Wait(bounded, backoff.Around(dialPause)) {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		return err
	}
}
