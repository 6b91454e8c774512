package consumer

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// pullRequest is the body of $JS.API.CONSUMER.MSG.NEXT.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// puller counts the messages that open pulls have asked for and not yet brought.
type puller struct {
	statuses  chan *nats.Msg
	mu        sync.Mutex
	owed      int
	last      time.Time // when the last message or status came from the server
	idleSince time.Time // when the last open pull ended
}

func (p *puller) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed
}

// idle returns how long no pull has been open.
func (p *puller) idle() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed > 0 || p.idleSince.IsZero() {
		return 0
	}
	return time.Since(p.idleSince)
}

func (p *puller) asked(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		p.last = time.Now()
	}
	p.owed += n
}

func (p *puller) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

// delivered counts one message that has arrived. If its pull was written off, with a
// lost connection say, its place was freed: then it takes one beyond the budget.
func (p *puller) delivered(b *budget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		b.overdraw()
		return
	}
	if p.owed--; p.owed == 0 {
		p.idleSince = time.Now()
	}
}

// silent reports whether a pull is open and the server has said nothing for d.
func (p *puller) silent(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owed > 0 && time.Since(p.last) > d
}

// forget writes off all open pulls and frees their places.
func (p *puller) forget(b *budget) { p.writeOff(b, -1) }

// writeOff frees the places of n messages that will not come; -1 is all.
func (p *puller) writeOff(b *budget, n int) {
	p.mu.Lock()
	if n < 0 || n > p.owed {
		n = p.owed
	}
	if p.owed -= n; p.owed == 0 && n > 0 {
		p.idleSince = time.Now()
	}
	p.mu.Unlock()
	b.release(n)
}

// status handles a message about a pull, such as 408 for one that has expired (ADR-13
// and ADR-37 of NATS). It returns an error when the durable has to be bound again.
func (p *puller) status(m *nats.Msg, b *budget) error {
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	if code == "100" { // idle heartbeat
		return nil
	}
	owed := -1
	if v := m.Header.Get("Nats-Pending-Messages"); v != "" {
		if n, err := strconv.Atoi(v); err == nil {
			owed = n
		}
	}
	p.writeOff(b, owed)
	switch {
	case code == "408", code == "404": // the pull has expired, or no message is there
		return nil
	case code == "409" && text != "Consumer Deleted" && text != "Consumer is push based":
		return nil // leadership change, server shutdown, batch completed: pull again
	}
	return fmt.Errorf("%w: %s %s", errUnbound, code, text)
}
