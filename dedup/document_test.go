package dedup_test

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/internal/testkit/wiretap"
)

// archive is a process whose events each append a letter to a document.
type archive struct {
	shop
	subject string
	deaf    atomic.Bool  // no answer arrives
	reads   atomic.Int64 // of the document at the server
	event   int
}

func newArchive(t *testing.T) *archive {
	t.Helper()
	a := &archive{}
	var tapped *atomic.Bool
	a.shop, tapped = newLossyShop(t, func(frame []byte) bool {
		if strings.Contains(wiretap.Subject(frame), ".GET.") && bytes.Contains(frame, []byte("state.payment.")) {
			a.reads.Add(1)
		}
		return false
	}, func(frame []byte) bool { return a.deaf.Load() && strings.HasPrefix(wiretap.Subject(frame), "_INBOX.") })
	tapped.Store(true)
	a.subject = a.bus.Names().StateSubject("payment", "o-1")
	return a
}

// other is another process of the same consumer.
func (a *archive) other() *archive {
	a.Helper()
	l, err := dedup.NewPartitions(a.bus, dedup.PartitionsConfig{})
	if err != nil {
		a.Fatal(err)
	}
	return &archive{shop: shop{a.T, a.bus, l}, subject: a.subject, event: 1000}
}

func (a *archive) read() dedup.Document {
	a.Helper()
	d, err := a.ledger.Document(a.Context(), a.subject)
	if err != nil {
		a.Fatal(err)
	}
	return d
}

// append handles an event as a consumer does: its handler runs again on newer state.
func (a *archive) append(t *dedup.Tenure, letter string) (runs int, err error) {
	a.Helper()
	a.event++
	c, err := a.claim(t, a.event, uint64(a.event))
	for err == nil || errors.Is(err, dedup.ErrStale) {
		runs++
		d := a.read()
		err = a.ledger.Complete(a.Context(), c, []*nats.Msg{dedup.PutDocument(a.subject, append(bytes.Clone(d.Data), letter...), d.Version)})
		if err == nil {
			break
		}
	}
	return runs, err
}

// appends is append, which has to succeed in so many runs and to read so often.
func (a *archive) appends(t *dedup.Tenure, letter string, runs int, reads int64) {
	a.Helper()
	before := a.reads.Load()
	got, err := a.append(t, letter)
	if read := a.reads.Load() - before; err != nil || got != runs || read != reads {
		a.Errorf("%s: %d runs, %d reads, %v; want %d runs, %d reads", letter, got, read, err, runs, reads)
	}
}

// holds checks what the server has.
func (a *archive) holds(want string) {
	a.Helper()
	d, err := a.ledger.Committed(a.Context(), a.subject)
	if err != nil || string(d.Data) != want {
		a.Errorf("the document is %q (%v), want %q", d.Data, err, want)
	}
}

// put writes the document as a person does.
func (a *archive) put(value string) {
	a.Helper()
	pending, err := a.bus.Send(a.Context(), &nats.Msg{Subject: a.subject, Data: []byte(value)})
	if err == nil {
		_, err = pending.Wait(a.Context())
	}
	if err != nil {
		a.Fatal(err)
	}
}

func TestDocument_of_an_owned_partition_is_read_once(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	owner := a.take("a")
	a.appends(owner, "a", 1, 1)
	for _, letter := range strings.Split("bcdefgh", "") {
		a.appends(owner, letter, 1, 0)
	}
	a.holds("abcdefgh")
}

// Somebody else has written the document. The step that builds on the cached one is
// refused, its handler runs once more, and from then on the server is asked each time.
func TestDocument_that_others_change_is_not_cached(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	owner := a.take("a")
	a.appends(owner, "a", 1, 1)
	a.put("X")
	if _, err := a.append(owner, "b"); err != nil {
		t.Fatal(err)
	}
	a.holds("Xb")
	for range 3 {
		a.put("Y")
		before := a.reads.Load()
		if runs, err := a.append(owner, "c"); err != nil || runs != 1 || a.reads.Load() == before {
			t.Errorf("%d runs, %v, %d reads", runs, err, a.reads.Load()-before)
		}
		a.holds("Yc")
	}
}

// What rests on a cached document and changes nothing is void, too, if others have
// changed it, or deleted it.
func TestDocument_that_others_change_is_not_relied_on(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	owner := a.take("a")
	a.appends(owner, "a", 1, 1)
	keep := func() error {
		return a.ledger.Confirm(t.Context(), []*nats.Msg{dedup.KeepDocument(a.subject, a.read().Version)})
	}
	if err := keep(); err != nil {
		t.Fatal(err)
	}
	a.put("X")
	if err := keep(); !errors.Is(err, dedup.ErrStale) {
		t.Fatalf("it was changed by others: %v, want ErrStale", err)
	}
	if err := keep(); err != nil {
		t.Fatal(err)
	}
	if d := a.read(); string(d.Data) != "X" {
		t.Errorf("read %q, want X", d.Data)
	}
}

// A partition goes away and comes back. Nothing of the time before is used, and not
// one handler runs twice for it.
func TestDocument_does_not_outlive_its_owner(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	b := a.other()
	zombie := a.take("a")
	a.appends(zombie, "a", 1, 1)
	second := b.take("b")
	if runs, err := b.append(second, "b"); err != nil || runs != 1 {
		t.Fatalf("the next owner: %d runs, %v", runs, err)
	}
	if _, err := a.append(zombie, "z"); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatalf("the zombie: %v, want ErrLeaseLost", err)
	}
	a.holds("ab")
	third := a.take("a")
	if runs, err := b.append(second, "z"); !errors.Is(err, dedup.ErrLeaseLost) {
		t.Fatalf("the second zombie: %d runs, %v, want ErrLeaseLost", runs, err)
	}
	if runs, err := a.append(third, "c"); err != nil || runs != 1 {
		t.Errorf("the owner that has come back: %d runs, %v", runs, err)
	}
	a.holds("abc")
}

// An owner that was frozen before it noticed anything takes its partition again.
func TestDocument_does_not_outlive_a_tenure_that_was_given_up(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	b := a.other()
	first := a.take("a")
	a.appends(first, "a", 1, 1)
	if err := first.Farewell(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := b.take("b")
	if runs, err := b.append(second, "b"); err != nil || runs != 1 {
		t.Fatalf("the next owner: %d runs, %v", runs, err)
	}
	if err := second.Farewell(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := a.take("a")
	a.appends(third, "c", 1, 1)
	a.appends(third, "d", 1, 0)
	a.holds("abcd")
}

// A batch was stored, and its answer was lost. What the process knew before is not
// used, and neither is what it has tried to write: the server is asked.
func TestDocument_of_a_batch_without_an_answer_is_read_again(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	owner := a.take("a")
	a.appends(owner, "a", 1, 1)
	a.event++
	c := a.want(owner, a.event, uint64(a.event), dedup.Claimed)
	d := a.read()
	a.deaf.Store(true)
	err := a.ledger.Complete(t.Context(), c, []*nats.Msg{dedup.PutDocument(a.subject, []byte("ab"), d.Version)})
	a.deaf.Store(false)
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("complete: %v, want ErrUnavailable", err)
	}
	before := a.reads.Load()
	if d := a.read(); string(d.Data) != "ab" || a.reads.Load() == before {
		t.Errorf("read %q in %d reads, want ab from the server", d.Data, a.reads.Load()-before)
	}
	third := a.take("a")
	if _, err := a.append(third, "c"); err != nil {
		t.Fatal(err)
	}
	a.holds("abc")
}
