package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// errUnsent is the result of a row that was not sent: a row of its key before it
// has failed, or there was no time left.
var errUnsent = errors.New("outbox: not sent")

// result is what became of a row: nil when a stream has stored it.
type result struct {
	row *row
	err error
}

// sender publishes rows: those of one key one after another, in the order given,
// each after its predecessor is stored; those of different keys at once.
type sender struct {
	bus   *bus.Bus
	types []event.Type // of rows of others; any if there is none
	judge *judge
}

// flight is a row on its way.
type flight struct {
	*bus.Pending
	row  *row
	sent time.Time
}

// send tells the result of every row, in any order and from several goroutines,
// and returns after the last. Nothing is sent any more when sending has ended;
// nobody waits for an acknowledgement any more when waiting has.
//
// After a row that failed the rest of its key is left unsent.
func (s sender) send(sending, waiting context.Context, rows []row, tell func(result)) {
	var work sync.WaitGroup
	defer work.Wait()
	byKey := chains(rows)
	alone := make([]*row, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		switch chain := byKey[r.key]; {
		case len(chain) == 1: // as most are; to wait for them needs no goroutine each
			alone = append(alone, r)
		case chain[0] == r:
			work.Go(func() { s.follow(sending, waiting, chain, tell) })
		}
	}
	s.scatter(sending, waiting, alone, tell)
}

// chains are the rows of each key.
func chains(rows []row) map[string][]*row {
	byKey := make(map[string][]*row, len(rows))
	for i := range rows {
		r := &rows[i]
		byKey[r.key] = append(byKey[r.key], r)
	}
	return byKey
}

// scatter publishes rows of different keys at once. Those that nobody has answered
// are told last: the answers of others say whose fault it is.
func (s sender) scatter(sending, waiting context.Context, rows []*row, tell func(result)) {
	flights := make([]flight, 0, len(rows))
	for _, r := range rows {
		f, err := s.start(sending, r)
		if err != nil {
			tell(result{r, err})
			continue
		}
		flights = append(flights, f)
	}
	var silent []flight
	for _, f := range flights {
		if err := s.wait(waiting, f); unanswered(err) {
			silent = append(silent, f)
		} else {
			tell(result{f.row, err})
		}
	}
	for _, f := range silent {
		tell(result{f.row, s.wait(waiting, f)})
	}
}

// follow publishes rows one after another.
func (s sender) follow(sending, waiting context.Context, chain []*row, tell func(result)) {
	for i, r := range chain {
		f, err := s.start(sending, r)
		if err == nil {
			err = s.wait(waiting, f)
		}
		tell(result{r, err})
		if err != nil {
			for _, left := range chain[i+1:] {
				tell(result{left, errUnsent})
			}
			return
		}
	}
}

func (s sender) start(sending context.Context, r *row) (flight, error) {
	m, err := r.admitted(s.bus.Names(), s.types)
	if err != nil {
		return flight{}, err
	}
	// A process that was stopped looks at the clock before its timers do.
	now := time.Now()
	if end, ok := sending.Deadline(); sending.Err() != nil || ok && !now.Before(end) {
		return flight{}, errUnsent
	}
	p, err := s.bus.SendExact(sending, m)
	return flight{p, r, now}, err
}

// wait returns nil when a stream has stored the row, now or before.
func (s sender) wait(waiting context.Context, f flight) error {
	_, err := f.Wait(waiting)
	return s.judge.blame(waiting, f, err)
}
