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
	deniedAcks               // the subscription for acknowledgements
	deniedReplies            // the subscription for answers of the API
	busClosed
	noticeKinds
)

// notices is the list's writing end.
type notices struct {
	mu   sync.Mutex // one writer at a time
	last atomic.Pointer[notice]
	// standing are the inboxes refused on this connection, by kind. The server
	// says it once, while everybody who comes later would wait in vain.
	standing [noticeKinds]atomic.Pointer[notice]
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
	if kind == deniedAcks || kind == deniedReplies {
		n.standing[kind].Store(node)
	}
	n.last.Store(node.next)
	close(node.ready)
}

// inbox returns the refusal of an inbox on this connection, or nil.
func (n *notices) inbox(kind noticeKind) error {
	if node := n.standing[kind].Load(); node != nil {
		return node.fault("", kind)
	}
	return nil
}

// forget is for the end of a connection: on the next one everything is asked anew.
func (n *notices) forget() {
	for i := range n.standing {
		n.standing[i].Store(nil)
	}
}

// violation is the server's text: Permissions Violation for Publish to "subject".
var violation = regexp.MustCompile(`(?i)permissions violation for (publish|subscription)[^"]* to ("(?:[^"\\]|\\.)*")`)

// noteViolation broadcasts a refused publish or inbox, which somebody waits
// for. It reports whether err was one. acks is the subscription for acknowledgements.
func (n *notices) noteViolation(err error, inboxPrefix, acks string) bool {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	parts := violation.FindStringSubmatch(err.Error())
	if parts == nil {
		return false
	}
	subject, err := strconv.Unquote(parts[2])
	if err != nil {
		return false
	}
	if strings.EqualFold(parts[1], "publish") {
		n.add(deniedPublish, subject)
		return true
	}
	// The client has two inboxes of its own, PREFIX.<token>.*; others, such as
	// a consumer's, are the business of whoever subscribed to them.
	rest, inbox := strings.CutPrefix(subject, inboxPrefix)
	token, own := strings.CutSuffix(rest, ".*")
	if !inbox || !own || strings.Contains(token, ".") {
		return false
	}
	if subject == acks {
		n.add(deniedAcks, subject)
	} else {
		n.add(deniedReplies, subject)
	}
	return true
}

// fault says what a notice means for a message on subject whose answer comes
// to the given kind of inbox: nil if nothing.
func (n *notice) fault(subject string, inbox noticeKind) error {
	switch {
	case n.kind == busClosed:
		return ErrClosed
	case n.kind == deniedPublish && n.subject == subject:
		return fmt.Errorf("%w for %s: grant this user publish on it", ErrDenied, subject)
	case n.kind == inbox:
		return fmt.Errorf("%w for subscription %s: grant this user subscribe on it, or no answer can arrive", ErrDenied, n.subject)
	}
	return nil
}

// call runs one JetStream API call and ends it at once, with an error matching
// [ErrDenied], when the server refuses the call's subject. api is the subject
// without the API prefix, as in "STREAM.INFO.EVENTS".
func (b *Bus) call(ctx context.Context, api string, fn func(context.Context) error) error {
	if err := b.notices.inbox(deniedReplies); err != nil {
		return err
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
			subject := api
			if strings.HasSuffix(n.subject, ".API."+api) { // after whatever prefix
				subject = n.subject
			}
			if err := n.fault(subject, deniedReplies); err != nil {
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
