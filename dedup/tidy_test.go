package dedup_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
)

// What a record or a document replaces does not stay in the stream, which allows no roll-ups.
func TestPartitions_keep_the_last_of_records_and_documents(t *testing.T) {
	t.Parallel()
	b := bustest.NewBus(t)
	l := newOwner(t, b, 1, dedup.PartitionsConfig{})
	subject := b.Names().StateSubject("payment", "a")
	change := func(n int, message func(dedup.Version) *nats.Msg) {
		d, err := l.Document(t.Context(), subject)
		if err != nil {
			t.Fatal(err)
		}
		c := claim(t, l, handed(keyOf(n)), dedup.Claimed)
		if err := l.Release(t.Context(), c, &event.Attempt{Number: 1, Error: "once"}, nil); err != nil {
			t.Fatal(err)
		}
		c = claim(t, l, handed(keyOf(n)), dedup.Claimed)
		if err := l.Complete(t.Context(), c, []*nats.Msg{message(d.Version)}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 5 {
		change(n, func(v dedup.Version) *nats.Msg { return dedup.PutDocument(subject, fmt.Append(nil, n), v) })
	}
	once := func(filter string, want int) func() error {
		return func() error {
			found := subjects(t, b, filter)
			maps.DeleteFunc(found, func(subject string, _ uint64) bool { return strings.HasSuffix(subject, ".page") }) // all count
			for subject, times := range found {
				if times != 1 {
					return fmt.Errorf("%s is there %d times", subject, times)
				}
			}
			if len(found) != want {
				return fmt.Errorf("%d of %s, want %d", len(found), filter, want)
			}
			return nil
		}
	}
	bustest.Eventually(t, soon, once("ledger.>", 5)) // waiting, then done
	bustest.Eventually(t, soon, once("state.>", 1))
	if d, err := l.Committed(t.Context(), subject); err != nil || string(d.Data) != "4" {
		t.Errorf("the document is %q (%v), want the last change", d.Data, err)
	}
	change(5, func(v dedup.Version) *nats.Msg { return dedup.DeleteDocument(subject, v) })
	bustest.Eventually(t, soon, once("state.>", 1)) // its trace
	if d, err := l.Committed(t.Context(), subject); err != nil || d.Exists {
		t.Errorf("the deleted document is %q (%v)", d.Data, err)
	}
}
