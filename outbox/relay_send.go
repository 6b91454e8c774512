package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/farandole/farandole/bus"
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
type sender struct{ bus *bus.Bus }

// send tells the result of every row, in any order and from several goroutines,
// and returns after the last. Nothing is sent any more when sending has ended;
// nobody waits for an acknowledgement any more when waiting has.
//
// After a row that failed the rest of its key is left unsent.
func (s sender) send(sending, waiting context.Context, rows []row, tell func(result)) {
	var work sync.WaitGroup
	for _, chain := range chains(rows) {
		work.Go(func() { s.follow(sending, waiting, chain, tell) })
	}
	work.Wait()
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

func (s sender) follow(sending, waiting context.Context, chain []*row, tell func(result)) {
	for i, r := range chain {
		err := s.publish(sending, waiting, r)
		tell(result{r, err})
		if err != nil {
			for _, left := range chain[i+1:] {
				tell(result{left, errUnsent})
			}
			return
		}
	}
}

// publish returns nil when a stream has stored the row, now or before.
func (s sender) publish(sending, waiting context.Context, r *row) error {
	m, err := r.message()
	if err != nil {
		return err
	}
	// A process that was stopped looks at the clock before its timers do.
	if end, ok := sending.Deadline(); sending.Err() != nil || ok && !time.Now().Before(end) {
		return errUnsent
	}
	p, err := s.bus.Send(sending, m)
	if err != nil {
		return err
	}
	_, err = p.Wait(waiting)
	return err
}
