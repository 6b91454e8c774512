package deduptest

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// Ledger is a ledger with what people ask of it.
type Ledger interface {
	dedup.Ledger
	Mark(ctx context.Context, c event.Consumer, k event.EventKey) (dedup.Mark, bool, error)
	Discard(ctx context.Context, c event.Consumer, k event.EventKey) error
	TakeBack(ctx context.Context, c event.Consumer, k event.EventKey, replay int) (bool, error)
}

// Backend is one fresh set of marks, and what the suite needs to see around it.
// All fields but Owned are required.
type Backend struct {
	// Open returns another worker's ledger on the marks, as another process
	// would open it.
	Open func() Ledger
	// Names makes the subjects of what is sent through the ledgers.
	Names event.Names
	// Stored counts the messages that the ledgers have made durable on a
	// subject. What is recognised as a repeat by its message id counts once.
	Stored func(subject string) int
	// Marks counts the marks, those that have expired excluded.
	Marks func() int
	// Owned says that events belong to one worker at a time: with its first claim a
	// worker that Open returned takes them from the one before.
	Owned bool
	// Pass lets d pass by the clock of the marks: it waits, or moves the clock.
	Pass func(d time.Duration)
}

// Factory makes a backend whose ledgers have the given retention, for t alone.
// Backends with a retention of a day may share their marks.
type Factory func(t *testing.T, retention time.Duration) Backend

const (
	consumer = event.Consumer("payment")
	other    = event.Consumer("audit")

	// lease is the shortest that a ledger accepts, for tests that wait for its end.
	lease = time.Second
	// hold is a lease that does not end during a test.
	hold = time.Minute
	// margin is how much later than the end of a lease it may be noticed.
	margin = 2 * time.Second
	// soon is how long a test waits for what has to happen, on a slow machine.
	soon = time.Minute
	// step is how much time passes between two looks at a condition.
	step = 20 * time.Millisecond
	// short is a retention that ends during a test, but not between two calls.
	short = 8 * time.Second
	day   = 24 * time.Hour
)

// rig is a test at work on a backend.
type rig struct {
	*testing.T
	Backend
	ctx context.Context //nolint:containedctx // the test's own
}

func newRig(t *testing.T, open Factory, retention time.Duration) *rig {
	t.Helper()
	t.Parallel()
	return &rig{T: t, Backend: open(t, retention), ctx: t.Context()}
}

func newKey() event.EventKey { return event.NewEventKey("/deduptest", rand.Text()) }

func request(k event.EventKey, lease time.Duration) dedup.Request {
	return dedup.Request{Consumer: consumer, Key: k, Lease: lease, Redelivered: true}
}

func replay(k event.EventKey, n int) dedup.Request {
	return dedup.Request{Consumer: consumer, Key: k, Replay: n, Lease: hold, Redelivered: true}
}

// outgoing is an event caused by k, with the same message id on every run.
func (b Backend) outgoing(k event.EventKey) *nats.Msg {
	return message(b.Names.EventSubject("payment.captured.v1", event.Key(k)), "out-"+string(k))
}

func (b Backend) letter(k event.EventKey) *nats.Msg {
	return message(b.Names.DeadLetterSubject(consumer, event.ReasonPermanent, k), "letter-"+string(k))
}

func message(subject, id string) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{nats.MsgIdHdr: {id}}, Data: []byte(id)}
}

// refused is a message that can never be stored: no stream takes its subject,
// and no server its size.
func (b *rig) refused() *nats.Msg {
	m := message("no-stream-stores-this", rand.Text())
	m.Data = make([]byte, 2<<20)
	return m
}

func failure(n int, text string) *event.Attempt {
	return &event.Attempt{Number: n, At: time.Now().UTC().Truncate(time.Second), Class: "test", Error: text, Host: "here"}
}

// claim asks and wants this answer.
func (b *rig) claim(l dedup.Ledger, r dedup.Request, want dedup.Status) *dedup.Claim {
	b.Helper()
	c, err := l.Claim(b.ctx, r)
	if err != nil {
		b.Fatalf("claim: %v", err)
	}
	if c.Status != want {
		b.Fatalf("claim answered %v, want %v", c.Status, want)
	}
	if c.RetryIn > r.Lease+margin {
		b.Fatalf("RetryIn %v exceeds the lease %v", c.RetryIn, r.Lease)
	}
	if (c.Status == dedup.Busy) != (c.RetryIn > 0) {
		b.Fatalf("RetryIn is %v when %v", c.RetryIn, c.Status)
	}
	return c
}

// claimWithin asks until the event is claimed.
func (b *rig) claimWithin(l dedup.Ledger, r dedup.Request, within time.Duration) *dedup.Claim {
	b.Helper()
	var c *dedup.Claim
	b.eventually(within, func() bool {
		var err error
		if c, err = l.Claim(b.ctx, r); err != nil {
			b.Fatalf("claim: %v", err)
		}
		return c.Status == dedup.Claimed
	})
	return c
}

// eventually passes time until done; the test fails if it takes longer than within.
func (b *rig) eventually(within time.Duration, done func() bool) {
	b.Helper()
	start, passed := time.Now(), time.Duration(0)
	for !done() {
		if max(passed, time.Since(start)) > within {
			b.Fatalf("not within %v", within)
		}
		b.Pass(step)
		passed += step
	}
}

// rival is another worker that claims while l works. Of owned events it is l itself.
func (b *rig) rival(l Ledger) Ledger {
	if b.Owned {
		return l
	}
	return b.Open()
}

// untold is the state of an event about which there is nothing to say once its claim
// is over: owners write none.
func (b *rig) untold(state string) string {
	if b.Owned {
		return ""
	}
	return state
}

func (b *rig) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *rig) lost(what string, err error) {
	b.Helper()
	if !errors.Is(err, dedup.ErrLeaseLost) {
		b.Fatalf("%s: got %v, want ErrLeaseLost", what, err)
	}
}

// mark returns the mark, with the state "" when there is none.
func (b *rig) mark(l Ledger, k event.EventKey) dedup.Mark {
	b.Helper()
	m, _, err := l.Mark(b.ctx, consumer, k)
	b.ok(err)
	return m
}

func (b *rig) wantState(l Ledger, k event.EventKey, want string) dedup.Mark {
	b.Helper()
	m := b.mark(l, k)
	if m.State != want {
		b.Fatalf("mark is %q, want %q", m.State, want)
	}
	return m
}

// wantStored wants so many messages caused by k, and letters of k.
func (b *rig) wantStored(k event.EventKey, out, letters int) {
	b.Helper()
	if n := b.Stored(b.outgoing(k).Subject); n != out {
		b.Fatalf("%d outgoing messages were stored, want %d", n, out)
	}
	if n := b.Stored(b.letter(k).Subject); n != letters {
		b.Fatalf("%d letters were stored, want %d", n, letters)
	}
}
