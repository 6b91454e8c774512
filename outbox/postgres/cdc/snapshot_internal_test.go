package cdc

import "testing"

func TestSnapshot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		xid  uint32
		want bool
	}{
		{"10:20:", 9, true},
		{"10:20:", 19, true},
		{"10:20:", 20, false},
		{"10:20:", 25, false},
		{"10:20:10,15", 15, false},
		{"10:20:10,15", 14, true},
		{"10:20:10,15", 10, false},
		// The numbers go on behind 32 bits.
		{"4294967290:4294967300:4294967291", 4294967290, true},
		{"4294967290:4294967300:4294967291", 4294967291, false},
		{"4294967290:4294967300:4294967298", 2, false},
		{"4294967290:4294967300:4294967298", 3, true},
		{"4294967290:4294967300:4294967298", 4, false},
	} {
		s, err := parseSnapshot(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.sees(tt.xid); got != tt.want {
			t.Errorf("snapshot %s sees %d: %v", tt.text, tt.xid, got)
		}
	}
	for _, text := range []string{"", "1:2", "1:x:", "1:2:x"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("%q is a snapshot", text)
		}
	}
}
