package bus

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// The server reports a permission violation on the connection, apart from the
// publish or request that caused it; the asker would learn of it by a timeout.
// So violations are broadcast, as a linked list whose last node is not filled
// yet: whoever publishes remembers the last node and, while it waits, follows
// the list from there. Nothing is missed, nothing is registered, and nodes are
// collected when nobody waits from before them.

// notice is one node: what happened, once ready is closed.
type notice struct {
	ready chan struct{}
	// Set before ready is closed, constant afterwards.
	kind    noticeKind
	subject string
	next    *notice
}

type noticeKind int

const (
	deniedPublish noticeKind = iota
	deniedReply              // a subscription beneath the inbox prefix
	busClosed
)

// notices is the list's writing end.
type notices struct {
	mu   sync.Mutex // one writer at a time
	last atomic.Pointer[notice]
	// replyDenied is the inbox subscription refused on this connection. The
	// server says it once; later publishes would wait for acks in vain.
	replyDenied atomic.Pointer[string]
}

func newNotices() *notices {
	n := new(notices)
	n.last.Store(&notice{ready: make(chan struct{})})
	return n
}

func (n *notices) add(kind noticeKind, subject string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	node := n.last.Load()
	node.kind, node.subject = kind, subject
	node.next = &notice{ready: make(chan struct{})}
	n.last.Store(node.next)
	close(node.ready)
}

// violation is the server's text: Permissions Violation for Publish to "subject".
var violation = regexp.MustCompile(`(?i)permissions violation for (publish|subscription)[^"]* to ("(?:[^"\\]|\\.)*")`)

// noteViolation broadcasts a refused publish or inbox, which somebody waits
// for. It reports whether err was one.
func (n *notices) noteViolation(err error, inboxPrefix string) bool {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	parts := violation.FindStringSubmatch(err.Error())
	if parts == nil {
		return false
	}
	subject, err := strconv.Unquote(parts[2])
	switch {
	case err != nil:
		return false
	case strings.EqualFold(parts[1], "publish"):
		n.add(deniedPublish, subject)
		return true
	case strings.HasPrefix(subject, inboxPrefix):
		n.replyDenied.Store(&subject)
		n.add(deniedReply, subject)
		return true
	}
	return false
}

// fault says what a notice means for a message on subject: nil if nothing.
func (n *notice) fault(subject string) error {
	switch n.kind {
	case deniedPublish:
		if n.subject == subject {
			return fmt.Errorf("%w for %s: grant this user publish on it", ErrDenied, subject)
		}
	case deniedReply:
		return replyFault(n.subject)
	case busClosed:
		return ErrClosed
	}
	return nil
}

func replyFault(inbox string) error {
	return fmt.Errorf("%w for subscription %s: grant this user subscribe on it, or no acknowledgement can arrive", ErrDenied, inbox)
}

// call runs one JetStream API call and ends it at once, with an error matching
// [ErrDenied], when the server refuses the call's subject. api is the subject
// without the API prefix, as in "STREAM.INFO.EVENTS".
func (b *Bus) call(ctx context.Context, api string, fn func(context.Context) error) error {
	if inbox := b.notices.replyDenied.Load(); inbox != nil {
		return replyFault(*inbox)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	from := b.notices.last.Load()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := from; ; n = n.next {
			select {
			case <-ctx.Done():
				return
			case <-n.ready:
			}
			subject := n.subject
			if !strings.HasSuffix(subject, ".API."+api) {
				subject = api
			}
			if err := n.fault(subject); err != nil {
				cancel(err)
				return
			}
		}
	}()
	err := fn(ctx)
	cancel(nil)
	<-done
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, ErrDenied) || errors.Is(cause, ErrClosed)) {
		return cause
	}
	return err
}
