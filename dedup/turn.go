package dedup

import (
	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/event"
)

// kept is what a step says on the page of its partition.
type kept struct {
	key      event.BinaryKey
	sequence uint64 // of the message that ends, 0 for none
	ended    bool   // the event has ended: it is remembered
	starts   bool   // it is about to start
	farewell bool
	record   record // of the event's story, if the step has a mark
}

// turn is the next page of a tenure, and the steps of which it tells.
type turn struct {
	tenure *Tenure
	steps  []*step
	page   *nats.Msg
}

// turn makes what steps of this tenure say into its next page.
func (t *Tenure) turn(steps []*step) *nats.Msg {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := page{kind: pageCommit, owner: t.owner, serial: t.ledger.serial.Add(1), window: t.most, types: t.types}
	for _, s := range steps {
		switch k := s.kept; {
		case k.ended:
			p.ended = append(p.ended, k.key)
		case k.starts:
			p.starts = append(p.starts, k.key)
		case k.farewell:
			p.kind = pageFarewell
		}
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeEnding)
		}
	}
	p.floor = t.window.reached()
	return p.message(t.subject, t.last)
}

// turnBack takes back what turn has done: the page was not stored.
func (t *Tenure) turnBack(steps []*step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range steps {
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeOpen)
		}
	}
}

// turned says that the page is stored, and at which sequence.
func (t *Tenure) turned(steps []*step, sequence uint64) {
	at := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = sequence
	t.sight(sequence, at)
	for _, s := range steps {
		if s.kept.ended {
			t.ended.add(digest(s.kept.key[:16]), at)
		}
		if s.mark != nil {
			t.stories[s.kept.key.Key()] = entry{revision: s.revision, record: s.kept.record, created: at}
		}
		if s.kept.sequence > 0 {
			t.window.set(s.kept.sequence, placeEnded)
		}
	}
	t.window.settle()
}
