package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// errUnsent is the result of a row that was not sent: an earlier row of its key has
// failed, or there was no time left.
var errUnsent = errors.New("outbox: not sent")

// result is how the try to publish a row has ended.
type result struct {
	row *row
	err error // nil: a stream has stored it
}

// sender publishes rows: those of one key one after another, in the order given,
// each after its predecessor is stored; those of different keys at once.
type sender struct {
	bus   *bus.Bus
	types []event.Type // RelayConfig.Types
	judge *judge
}

// sentRow is a row on its way.
type sentRow struct {
	*bus.Pending
	row *row
	at  time.Time // when it was sent
}

// send reports the result of every row, in any order and from several goroutines,
// and returns after the last. It sends until sending ends, and waits for
// acknowledgements until waiting ends. After a row that has failed the later rows of
// its key are left unsent.
func (s sender) send(sending, waiting context.Context, rows []row, report func(result)) {
	var work sync.WaitGroup
	defer work.Wait()
	byKey := chains(rows)
	alone := make([]*row, 0, len(rows)) // in their key
	for i := range rows {
		r := &rows[i]
		switch chain := byKey[r.key]; {
		case len(chain) == 1: // as most are; to wait for them needs no goroutine each
			alone = append(alone, r)
		case chain[0] == r:
			work.Go(func() { s.follow(sending, waiting, chain, report) })
		}
	}
	s.scatter(sending, waiting, alone, report)
}

// chains returns the rows of each key.
func chains(rows []row) map[string][]*row {
	byKey := make(map[string][]*row, len(rows))
	for i := range rows {
		r := &rows[i]
		byKey[r.key] = append(byKey[r.key], r)
	}
	return byKey
}

// scatter publishes rows of different keys at once. Rows that nobody has answered it
// reports last: by then the answers to others say whose fault it is.
func (s sender) scatter(sending, waiting context.Context, rows []*row, report func(result)) {
	sent := make([]sentRow, 0, len(rows))
	for _, r := range rows {
		p, err := s.start(sending, r)
		if err != nil {
			report(result{r, err})
			continue
		}
		sent = append(sent, p)
	}
	var silent []sentRow
	for _, p := range sent {
		if err := s.wait(waiting, p); unanswered(err) {
			silent = append(silent, p)
		} else {
			report(result{p.row, err})
		}
	}
	for _, p := range silent {
		report(result{p.row, s.wait(waiting, p)})
	}
}

// follow publishes the rows of a key one after another.
func (s sender) follow(sending, waiting context.Context, chain []*row, report func(result)) {
	for i, r := range chain {
		p, err := s.start(sending, r)
		if err == nil {
			err = s.wait(waiting, p)
		}
		report(result{r, err})
		if err != nil {
			for _, left := range chain[i+1:] {
				report(result{left, errUnsent})
			}
			return
		}
	}
}

func (s sender) start(sending context.Context, r *row) (sentRow, error) {
	m, err := r.admitted(s.bus.Names(), s.types)
	if err != nil {
		return sentRow{}, err
	}
	// In a process that was stopped and goes on, the timer of sending may be late.
	now := time.Now()
	if end, ok := sending.Deadline(); sending.Err() != nil || ok && !now.Before(end) {
		return sentRow{}, errUnsent
	}
	p, err := s.bus.SendExact(sending, m)
	return sentRow{p, r, now}, err
}

// wait returns nil when a stream has stored the row, now or before.
func (s sender) wait(waiting context.Context, p sentRow) error {
	_, err := p.Wait(waiting)
	return s.judge.blame(waiting, p, err)
}
