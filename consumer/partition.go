package consumer

import (
	"sync"
	"time"

	"github.com/farandole/farandole/dedup"
)

// partition is one that this process owns, for a ledger with partitions. Its
// messages are not settled at the server: the ledger's pages say what has ended, and
// what is given back waits here.
type partition struct {
	consumer *Consumer
	tenure   *dedup.Tenure
	admit    func(*delivery) // takes in what has waited here
	idle     chan struct{}   // closed when it is closed and nothing of it runs

	mu      sync.Mutex
	held    int  // deliveries that are queued or run
	closing bool // nothing begins any more
}

// enter takes in a message that the server has delivered, behind the floor if it is of
// a type that is; false if it is not to run.
func (p *partition) enter(sequence uint64, behind bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	enter := p.tenure.Enter
	if behind {
		enter = p.tenure.EnterBehind
	}
	if p.closing || !enter(sequence) {
		return false
	}
	p.held++
	return true
}

// leave is called once for each time that a delivery was queued or ran.
func (p *partition) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held--; p.held == 0 && p.closing {
		close(p.idle)
	}
}

// close has nothing begin any more.
func (p *partition) close() {
	p.mu.Lock()
	first := !p.closing
	p.closing = true
	if first && p.held == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	p.consumer.slots.look()
}

func (p *partition) closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

// again runs a delivery once more after a delay. It keeps its place meanwhile, so
// that what waits bounds what is read.
func (p *partition) again(d *delivery, delay time.Duration) {
	next := d.again()
	d.waits = true
	time.AfterFunc(delay, func() {
		if !p.resume() {
			next.leavePlace()
			return
		}
		defer p.consumer.resuming.Done()
		p.admit(next)
	})
}

// resume takes a delivery in again that has waited; false if it is not to run here.
func (p *partition) resume() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	p.held++
	p.consumer.resuming.Add(1)
	return true
}

// again is the delivery as it comes once more.
func (d *delivery) again() *delivery {
	return &delivery{
		msg: d.msg, consumer: d.consumer, stream: d.stream, sequence: d.sequence, stored: d.stored,
		feed: d.feed, partition: d.partition, extra: d.extra, lane: d.lane, redrive: d.redrive,
		redelivered: d.redelivered || d.partition.tenure.Careful(), delivered: d.delivered + 1, beat: time.Now(),
	}
}
