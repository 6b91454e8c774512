package event_test

import (
	"testing"

	"github.com/farandole/farandole/event"
)

func TestSubjectsCoverAndCollide(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b             string
		covers, collides bool
	}{
		{"a.b", "a.b", true, true},
		{"a.b", "a.c", false, false},
		{"a.*", "a.b", true, true},
		{"a.b", "a.*", false, true},
		{"a.>", "a.b.c", true, true},
		{"a.>", "a.*", true, true},
		{"a.*", "a.>", false, true},
		{"a.>", "a", false, false},
		{"a", "a.>", false, false},
		{">", "a.b", true, true},
		{"*.b", "a.*", false, true},
		{"*.b", "a.c", false, false},
		{"a.*.c", "a.>", false, true},
		{"a.*.c", "a.b.*", false, true},
		{"a.*.c", "a.b.d", false, false},
		{"a.*", "a.b.c", false, false},
		{">", "a.*", true, true},
		{"a.b", "a.b.c", false, false},
		{"events.>", "events.dlq.>", true, true},
		{"events.>", "dlq.>", false, false},
	} {
		if got := event.SubjectCovers(tc.a, tc.b); got != tc.covers {
			t.Errorf("SubjectCovers(%q, %q) = %t", tc.a, tc.b, got)
		}
		if got := event.SubjectsCollide(tc.a, tc.b); got != tc.collides {
			t.Errorf("SubjectsCollide(%q, %q) = %t", tc.a, tc.b, got)
		}
		if got := event.SubjectsCollide(tc.b, tc.a); got != tc.collides {
			t.Errorf("SubjectsCollide(%q, %q) = %t", tc.b, tc.a, got)
		}
	}
}
