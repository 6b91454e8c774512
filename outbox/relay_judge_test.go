package outbox

import (
	"testing"
	"time"
)

// A row is to blame for the silence about it if rows before and after it were answered.
func TestARowIsBlamedForSilenceBetweenAnswers(t *testing.T) {
	t.Parallel()
	type step struct {
		sent     int  // seconds
		answered bool // otherwise silence
		blamed   bool
	}
	heard := func(sent int) step { return step{sent: sent, answered: true} }
	silence := func(sent int) step { return step{sent: sent} }
	blamed := func(sent int) step { return step{sent: sent, blamed: true} }
	for name, steps := range map[string][]step{
		"between answers":                           {heard(1), heard(3), blamed(2)},
		"the first of all is tried again":           {heard(2), silence(1), heard(4), blamed(3)},
		"nobody answers":                            {silence(1), silence(2), silence(3)},
		"an outage begins":                          {heard(1), silence(2), silence(3)},
		"an outage ends while it is on its way":     {silence(1), silence(2), heard(5), silence(3), silence(4)},
		"a late answer from before the outage":      {silence(2), heard(1), heard(5), silence(4)},
		"after the outage":                          {silence(1), heard(3), heard(5), blamed(4)},
		"an outage begins and ends while rows wait": {heard(1), silence(2), heard(5), silence(3)},
	} {
		j := &judge{}
		for i, s := range steps {
			at := time.Unix(int64(s.sent), 0)
			if s.answered {
				j.heard(at)
			} else if got := j.passedOver(at); got != s.blamed {
				t.Errorf("%s: step %d: blamed is %v", name, i, got)
			}
		}
	}
}
