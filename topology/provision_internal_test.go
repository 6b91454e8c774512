package topology

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func TestFeaturesThatTheServerLacksAreNamed(t *testing.T) {
	t.Parallel()
	all := jetstream.StreamConfig{AllowMsgTTL: true, SubjectDeleteMarkerTTL: 1, AllowAtomicPublish: true, AllowMsgSchedules: true}
	for version, want := range map[string][]string{
		"2.10.29":      {"allow_msg_ttl", "subject_delete_marker_ttl", "allow_atomic", "allow_msg_schedules"},
		"2.11.4":       {"allow_atomic", "allow_msg_schedules"},
		"2.12.0-RC.1":  nil,
		"2.15.2":       nil,
		"3.0.0":        nil,
		"1.4.1":        {"allow_msg_ttl", "subject_delete_marker_ttl", "allow_atomic", "allow_msg_schedules"},
		"unknown-made": nil,
	} {
		var got []string
		for _, c := range unsupported(version, all) {
			got = append(got, c.Setting)
			if c.Safe || !strings.Contains(c.Have, version) || !strings.Contains(c.Why, "needs nats-server 2.1") {
				t.Errorf("%s: %s", version, c)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got %v, want %v", version, got, want)
		}
	}
	if plain := unsupported("2.10.0", jetstream.StreamConfig{}); plain != nil {
		t.Errorf("a plain stream needs %v", plain)
	}
}
