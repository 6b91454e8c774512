package durable

import (
	"slices"
	"testing"
)

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
