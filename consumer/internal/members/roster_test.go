package members

import (
	"slices"
	"testing"
	"time"
)

// story tells a roster what the stream stores, in seconds after a beginning.
type story struct {
	*testing.T
	roster
}

func newStory(t *testing.T) *story {
	t.Helper()
	return &story{t, roster{entries: map[string]entry{}}}
}

func at(seconds float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func (s *story) renews(seconds float64, ids ...string) {
	for _, id := range ids {
		s.pass(at(seconds))
		s.renew(Member{ID: id})
		s.expire()
	}
}

func (s *story) wants(ids ...string) {
	s.Helper()
	var have []string
	for id := range s.entries {
		have = append(have, id)
	}
	slices.Sort(have)
	if !slices.Equal(have, ids) {
		s.Errorf("at %v the members are %v, want %v", s.now.Sub(at(0)), have, ids)
	}
}

func TestMemberThatDoesNotRenewIsGoneAfterItsLifetime(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.renews(0, "a", "b")
	for i := 1.0; i < 4; i++ {
		s.renews(i, "a")
	}
	s.wants("a", "b")
	s.renews(4, "a")
	s.wants("a")
	s.renews(5, "b")
	s.wants("a", "b")
}

func TestTimeInWhichNobodyCouldWriteCountsForNobody(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.renews(0, "a", "b", "c")
	s.renews(1, "a", "b")
	s.renews(61, "a") // the server is back
	s.wants("a", "b", "c")
	s.renews(62, "a", "b")
	s.renews(63, "a", "b")
	s.wants("a", "b", "c")
	s.renews(64, "a", "b") // three seconds of these four counted against c, and the one before
	s.wants("a", "b")
}

func TestTimeOfAnotherServerCountsForNobody(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.renews(100, "a", "b")
	s.renews(0, "a") // its clock is behind
	for i := 1.0; i < 4; i++ {
		s.renews(i, "a")
	}
	s.wants("a", "b")
	s.renews(4, "a")
	s.wants("a")
}

func TestMembersThatAreNotInANewBucketHaveALifetimeToRenew(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.renews(0, "dead", "late", "left", "prompt")
	fresh := newStory(t)
	fresh.renews(9, "new", "prompt")
	if !s.merge(fresh.roster, map[string]bool{"left": true}) {
		t.Error("a member that left and a new one are no change")
	}
	s.wants("dead", "late", "new", "prompt")
	for i := 10.0; i < 14; i++ {
		s.renews(i, "late", "new", "prompt")
	}
	s.wants("late", "new", "prompt")
	if s.merge(roster{entries: map[string]entry{}}, nil) {
		t.Error("an empty bucket is a change")
	}
	s.wants("late", "new", "prompt")
}

func TestChangesCountWhenTheyRestOrAfterASecond(t *testing.T) {
	t.Parallel()
	var c changes
	if !c.due().IsZero() {
		t.Errorf("due at %v without a change", c.due())
	}
	c.add(at(0))
	if got := c.due(); !got.Equal(at(0.25)) {
		t.Errorf("one change is due after %v", got.Sub(at(0)))
	}
	c.add(at(0.2))
	if got := c.due(); !got.Equal(at(0.45)) {
		t.Errorf("two changes are due after %v", got.Sub(at(0)))
	}
	c.add(at(0.9))
	if got := c.due(); !got.Equal(at(1)) {
		t.Errorf("three changes are due after %v", got.Sub(at(0)))
	}
}
