package dedup

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
)

// changing is a step that changes a document.
func changing(subject string, based Version) *step {
	return newStep(&Tenure{}, kept{}, []*nats.Msg{PutDocument(subject, nil, based)})
}

// Steps of a batch that fails end one after another. What is tried again
// meanwhile does not fall with those that end later; what builds on a change
// that failed does.
func TestGroup_second_try_while_the_first_is_ending(t *testing.T) {
	t.Parallel()
	g := newGroup(nil, nil)
	g.committing = true // nothing is sent
	add := func(s *step) *step {
		if err := g.enqueue(s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := add(changing("a", 0)), add(changing("b", 0))
	under := batch{g}
	if n := len(g.take()); n != 2 {
		t.Fatalf("%d steps in the batch, want 2", n)
	}
	follower := add(changing("b", g.tips["b"].version))
	lost := errors.New("lost")
	under.end(a, lost)
	again := add(changing("a", 0))
	under.end(b, lost)
	for name, tt := range map[string]struct {
		*step
		want error
	}{"the first": {a, lost}, "the second": {b, lost}, "what follows": {follower, ErrStale}} {
		if got := <-tt.done; !errors.Is(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	select {
	case got := <-again.done:
		t.Errorf("the second try has ended: %v", got)
	default:
	}
	if steps := g.take(); len(steps) != 1 || steps[0] != again {
		t.Errorf("%d steps in the next batch, want the second try", len(steps))
	}
}
