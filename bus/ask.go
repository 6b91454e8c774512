package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// askTimeout bounds one request, also where the caller has more time: who does
// not answer within it has no leader, or is not reachable.
const askTimeout = 5 * time.Second

// Ask runs f, which sends one request to the JetStream API and waits for the
// answer. api is the request's subject without the API prefix, as in
// "STREAM.INFO.EVENTS"; more tokens may follow it. When the server refuses the
// subject, or the inbox for the answer, Ask ends f at once with an error that
// matches [ErrDenied] and names the missing grant. Other errors match
// [ErrNoStream], [ErrUnavailable], [ErrClosed] or, when the server answered
// something else, [ErrRefused]; and what f returned.
func (b *Bus) Ask(ctx context.Context, api string, f func(context.Context) error) error {
	return b.ask(ctx, api, ErrRefused, f)
}

// ask is [Bus.Ask] with another sentinel for answers.
func (b *Bus) ask(ctx context.Context, api string, otherwise error, f func(context.Context) error) error {
	bounded, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	guarded, end := b.Guard(bounded, api)
	err := f(guarded)
	if err = end(err); err == nil {
		return nil
	}
	err = requestFault(err, otherwise)
	if errors.Is(err, ErrUnavailable) {
		return ofStream(api, err)
	}
	return err
}

// Guard returns a context that ends when the server refuses a request to api, as
// [Bus.Ask] names it, or the answers to it. end ends it, and must be called: it
// returns the denial instead of an error that the end of the context has caused.
func (b *Bus) Guard(ctx context.Context, api string) (guarded context.Context, end func(error) error) {
	guarded, cancel := context.WithCancelCause(ctx)
	if err := b.refusedInbox(deniedReplies); err != nil {
		cancel(err)
	}
	from := b.notices.last.Load()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := from; ; n = n.next {
			select {
			case <-guarded.Done():
				return
			case <-n.ready:
			}
			subject := api
			if isAbout(n.subject, api) {
				subject = n.subject
			}
			if err := n.fault(subject, deniedReplies); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return guarded, func(err error) error {
		cancel(nil)
		<-done
		if cause := context.Cause(guarded); err != nil && (errors.Is(cause, ErrDenied) || errors.Is(cause, ErrClosed)) {
			return cause
		}
		return err
	}
}

// isAbout reports whether subject is that of an API request, after whatever prefix.
func isAbout(subject, api string) bool {
	return strings.Contains(subject+".", ".API."+api+".")
}

// absentProof is how long a cluster has to go on saying that a stream does not
// exist: a leader of JetStream that was elected before it had read all that was
// decided says so, too. absentPause is the time from one answer to the next question.
const (
	absentProof = time.Second
	absentPause = 50 * time.Millisecond
)

// Stream asks for a stream that has to exist, of ours or of others. Errors
// match [ErrNoStream], [ErrDenied], [ErrUnavailable] or [ErrClosed]. A stream
// without a leader does not answer: that is [ErrUnavailable]. A cluster is asked
// again for up to a second before a stream is said not to exist.
func (b *Bus) Stream(ctx context.Context, name string) (s jetstream.Stream, err error) {
	var proof time.Time // when it is proven that there is none; set by the first answer
	for {
		err = b.Ask(ctx, "STREAM.INFO."+name, func(ctx context.Context) (err error) {
			s, err = b.js.Stream(ctx, name)
			return err
		})
		switch {
		case err == nil:
			return s, nil
		case !errors.Is(err, ErrNoStream):
			return nil, fmt.Errorf("bus: stream %s: %w", name, err)
		case proof.IsZero():
			proof = time.Now().Add(absentProof)
			if end, ok := ctx.Deadline(); ok && end.Before(proof) {
				proof = end.Add(-2 * absentPause) // the last answer has to be back in time
			}
		}
		if b.nc.ConnectedClusterName() == "" || time.Now().After(proof) {
			return nil, &missing{stream: name}
		}
		select {
		case <-time.After(absentPause):
		case <-ctx.Done():
			return nil, &missing{stream: name}
		}
	}
}

// missing is a stream that does not exist. It matches [ErrNoStream].
type missing struct{ stream string }

func (m *missing) Error() string {
	if bucket, ok := strings.CutPrefix(m.stream, "KV_"); ok {
		return fmt.Sprintf("bus: bucket %s does not exist", bucket)
	}
	return fmt.Sprintf("bus: stream %s does not exist", m.stream)
}

func (m *missing) Unwrap() error { return ErrNoStream }
