package consumer

import (
	"testing"
	"time"
)

// On a machine that cannot keep up, heartbeats that pile up would take the
// connection from the work, which then takes longer still: of each delivery
// there is one at a time.
func TestHeartbeatsDoNotPileUp(t *testing.T) {
	t.Parallel()
	f, d, age := newInFlight(), &delivery{}, time.Second
	f.add(d)
	now := time.Now()
	for _, tt := range []struct {
		after time.Duration
		ends  bool // the heartbeat under way, before
		want  int
	}{
		{0, false, 1},
		{age, false, 0},
		{9 * age, false, 0},
		{9 * age, true, 1},
		{9 * age, true, 0}, // it has just been
		{10 * age, false, 1},
	} {
		if tt.ends {
			f.beaten(d)
		}
		if got := len(f.due(now.Add(tt.after), age)); got != tt.want {
			t.Errorf("%d heartbeats due after %v, want %d", got, tt.after, tt.want)
		}
	}
}
