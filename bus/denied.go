package bus

import (
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
// the list from there. Nothing is missed, and nodes are collected when nobody
// waits from before them.

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
	deniedPublish      noticeKind = iota
	deniedAcks                    // the subscription for acknowledgements
	deniedReplies                 // the subscription for answers of the API
	deniedSubscription            // any other one
	busClosed
	noticeKinds
)

// notices is the list's writing end.
type notices struct {
	told func() // wakes those that wait for more than ready

	mu   sync.Mutex // one writer at a time
	last atomic.Pointer[notice]
	// standing are the inboxes refused on this connection, by kind. The server
	// says it once, while everybody who comes later would wait in vain.
	standing [noticeKinds]atomic.Pointer[notice]
}

func newNotices(told func()) *notices {
	n := &notices{told: told}
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
	n.told()
}

// happened reports whether the node is filled.
func (n *notice) happened() bool {
	select {
	case <-n.ready:
		return true
	default:
		return false
	}
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

// noteViolation broadcasts a refused publish or subscription. It reports
// whether err was one that somebody waits for: the client has two inboxes of its
// own, PREFIX.<token>.*; of the others whoever subscribed to them may hear by
// [Bus.Denials]. acks is the subscription for acknowledgements.
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
	rest, inbox := strings.CutPrefix(subject, inboxPrefix)
	token, own := strings.CutSuffix(rest, ".*")
	switch {
	case !inbox || !own || strings.Contains(token, "."):
		n.add(deniedSubscription, subject)
		return false
	case subject == acks:
		n.add(deniedAcks, subject)
	default:
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
		return n.denial()
	case n.kind == inbox:
		return n.denial()
	}
	return nil
}

// denial says what was refused and which grant is missing, nil if nothing was.
func (n *notice) denial() error {
	switch n.kind {
	case deniedPublish:
		return fmt.Errorf("%w for %s: grant this user publish on it", ErrDenied, n.subject)
	case deniedAcks, deniedReplies:
		return fmt.Errorf("%w for subscription %s: grant this user subscribe on it, or no answer can arrive", ErrDenied, n.subject)
	case deniedSubscription:
		return fmt.Errorf("%w for subscription %s: grant this user subscribe on it", ErrDenied, n.subject)
	case busClosed, noticeKinds:
	}
	return nil
}

// Denials are what the server refuses this connection, in order. They tell of
// messages whose answer nobody awaits: pulls, acknowledgements of deliveries,
// subscriptions. It belongs to one goroutine.
type Denials struct{ at *notice }

// Denials returns those that are still to come.
func (b *Bus) Denials() *Denials { return &Denials{b.notices.last.Load()} }

// Ready returns a channel that is closed when [Denials.Next] has something.
func (d *Denials) Ready() <-chan struct{} { return d.at.ready }

// Next returns the refused subject and an error that matches [ErrDenied] and
// names the missing grant; nil when the bus was closed. It waits for Ready.
func (d *Denials) Next() (subject string, err error) {
	<-d.at.ready
	n := d.at
	d.at = n.next
	return n.subject, n.denial()
}
