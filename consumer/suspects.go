package consumer

import (
	"sync"
	"time"
)

// suspects lets events that were running in a process that died run one at a
// time, so that the one which kills it cannot drag the others along again. Not
// even a claim is made beside one: a claim that ends with the process counts
// as a run that ended with it.
type suspects struct {
	mu sync.Mutex
	// owner is the suspect that runs.
	owner *delivery
	// entering are redeliveries, all possible suspects, that have begun to
	// claim and do not know yet whether they run.
	entering map[*delivery]struct{}
	// alone is closed when only the owner is left of those; nil while nobody waits for that.
	alone chan struct{}
}

func newSuspects() *suspects { return &suspects{entering: map[*delivery]struct{}{}} }

// enter reports whether d may claim its event now.
func (s *suspects) enter(d *delivery) bool {
	if !d.redelivered {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		return false
	}
	s.entering[d] = struct{}{}
	return true
}

// take gives the place to d if nobody has it.
func (s *suspects) take(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		return false
	}
	s.owner = d
	return true
}

// admit ends d's entering. If d has the place it waits, at most so long, until
// the others that are entering have found out that they may not.
func (s *suspects) admit(d *delivery, most time.Duration) {
	s.mu.Lock()
	s.exit(d)
	if s.owner != d || len(s.entering) == 0 {
		s.mu.Unlock()
		return
	}
	alone := make(chan struct{})
	s.alone = alone
	s.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-alone:
	case <-timer.C:
	}
}

// leave takes d out, wherever it is, and frees the place if d has it.
func (s *suspects) leave(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(d)
	if s.owner == d {
		s.owner, s.alone = nil, nil
	}
}

// exit takes d out of those entering. The caller holds s.mu.
func (s *suspects) exit(d *delivery) {
	delete(s.entering, d)
	if len(s.entering) == 0 && s.alone != nil {
		close(s.alone)
		s.alone = nil
	}
}
