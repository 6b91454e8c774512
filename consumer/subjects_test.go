package consumer

import (
	"slices"
	"testing"
)

func TestFiltersCoverAndOverlap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b             string
		covers, overlaps bool
	}{
		{"a.b", "a.b", true, true},
		{"a.b", "a.c", false, false},
		{"a.*", "a.b", true, true},
		{"a.b", "a.*", false, true},
		{"a.>", "a.b", true, true},
		{"a.>", "a.b.c", true, true},
		{"a.>", "a", false, false},
		{"a.*", "a.b.c", false, false},
		{"a.*", "a.>", false, true},
		{"a.*.c", "a.b.*", false, true},
		{"a.*.c", "a.b.d", false, false},
		{">", "a.*", true, true},
		{"a.>", "b.>", false, false},
	} {
		if got := covers(tt.a, tt.b); got != tt.covers {
			t.Errorf("covers(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.covers)
		}
		if got := overlaps(tt.a, tt.b); got != tt.overlaps {
			t.Errorf("overlaps(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.overlaps)
		}
		if overlaps(tt.a, tt.b) != overlaps(tt.b, tt.a) {
			t.Errorf("overlaps(%s, %s) depends on the order", tt.a, tt.b)
		}
	}
}

func TestFiltersOnlyWiden(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ have, added, want []string }{
		{[]string{"a.x.*", "b.x.*"}, []string{"a.x.*"}, []string{"a.x.*", "b.x.*"}},
		{[]string{"a.x.*"}, []string{"b.x.*"}, []string{"a.x.*", "b.x.*"}},
		{[]string{"a.>"}, []string{"a.x.*"}, []string{"a.>"}},
		{[]string{"a.x.*", "b"}, []string{"a.>"}, []string{"b", "a.>"}},
		{[]string{"a.*.new"}, []string{"a.eu.*"}, nil},
	} {
		got, err := widened(tt.have, tt.added)
		if !slices.Equal(got, tt.want) || (err != nil) != (tt.want == nil) {
			t.Errorf("widened(%v, %v) = %v, %v; want %v", tt.have, tt.added, got, err, tt.want)
		}
	}
}
