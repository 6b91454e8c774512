package bus

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// A stream between two leaders has nobody who answers: a publish is
	// repeated before it is believed that there is no stream.
	noStreamRetries = 2
	noStreamWait    = 250 * time.Millisecond
)

// acks are the publishes in flight: it writes them to the connection and
// matches what the streams answer. The client library's asynchronous publisher
// does the same for several times the cost, because each of its publishes has
// two channels, a timer, an answer read by reflection and, when publishers
// wait for their answers, a system call of its own.
type acks struct {
	nc      *nats.Conn // set before the first publish
	timeout time.Duration
	window  chan struct{}   // one element a publish in flight
	ended   <-chan struct{} // closed when the connection has ended
	filled  chan struct{}   // tells the writer that the queue is not empty
	writer  sync.WaitGroup

	writing sync.Mutex // held while messages are read; before mu
	replies []byte     // the answers' subjects of what is being written; guarded by writing

	signals sync.Pool         // of channels that nobody waits at
	streams map[string]string // names of those that have answered; belongs to take

	mu      sync.Mutex
	inbox   string // for answers, ends in a dot; empty until the first publish
	closed  bool
	serial  uint64
	waiting map[uint64]*Pending // by serial, the last token of the answer's subject
	queue   []*Pending          // not written yet
	expiry  *time.Timer         // runs while anything is waiting
}

func newAcks(timeout time.Duration, most int, ended <-chan struct{}) *acks {
	return &acks{
		timeout: timeout,
		window:  make(chan struct{}, most),
		ended:   ended,
		filled:  make(chan struct{}, 1),
		waiting: map[uint64]*Pending{},
		streams: map[string]string{},
	}
}

// send queues p, which has a place in the window, for the writer.
func (a *acks) send(p *Pending) error {
	p.signal, p.deadline = a.channel(), time.Now().Add(a.timeout)
	p.unwritten.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(); err != nil {
		<-a.window
		return err
	}
	a.serial++
	p.serial = a.serial
	a.waiting[p.serial] = p
	if a.expiry == nil {
		a.expiry = time.AfterFunc(a.timeout, a.expire)
	}
	a.enqueue(p)
	return nil
}

// channel returns one of the signals that nobody waits at, or a new one. It may
// hold a signal from before, which only has whoever waits look once for nothing.
func (a *acks) channel() chan struct{} {
	if c, ok := a.signals.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

// open makes inbox and writer for the first publish. The caller holds a.mu.
func (a *acks) open() error {
	if a.closed {
		return nats.ErrConnectionClosed
	}
	if a.inbox != "" {
		return nil
	}
	a.inbox = a.nc.NewInbox() + "."
	if _, err := a.nc.Subscribe(a.inbox+"*", a.take); err != nil {
		a.inbox = ""
		return err
	}
	a.writer.Go(a.write)
	return nil
}

// subscription is the subject on which answers come, "*" before the first publish.
func (a *acks) subscription() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inbox + "*"
}

// enqueue has p written. The caller holds a.mu.
func (a *acks) enqueue(p *Pending) {
	a.queue = append(a.queue, p)
	if len(a.queue) == 1 {
		select {
		case a.filled <- struct{}{}:
		default:
		}
	}
}

// write runs until the connection ends. One goroutine for all publishers is
// what puts their messages into few packets: a publisher that writes and then
// waits has the client send a packet for each.
func (a *acks) write() {
	var batch []*Pending
	for {
		select {
		case <-a.ended:
			a.close()
			return
		case <-a.filled:
		}
		runtime.Gosched() // whoever is about to publish joins
		a.mu.Lock()
		batch, a.queue = a.queue, batch[:0]
		a.mu.Unlock()
		a.writing.Lock()
		a.publish(batch)
		a.writing.Unlock()
		clear(batch)
	}
}

// publish writes what is unwritten of a batch, whose reply subjects share one
// string. The caller holds a.writing.
func (a *acks) publish(batch []*Pending) {
	a.replies = a.replies[:0]
	for _, p := range batch {
		a.replies = strconv.AppendUint(append(a.replies, a.inbox...), p.serial, 36)
		p.replyEnd = len(a.replies)
	}
	replies, begin := string(a.replies), 0
	for _, p := range batch {
		reply := replies[begin:p.replyEnd]
		begin = p.replyEnd
		if !p.unwritten.Load() {
			continue
		}
		err := a.nc.PublishMsg(&nats.Msg{Subject: p.msg.Subject, Reply: reply, Header: p.msg.Header, Data: p.msg.Data})
		p.unwritten.Store(false)
		if err != nil {
			a.end(p.serial, Receipt{}, err)
		}
	}
}

// release is for a sender that waits no longer: when it returns, the message is
// not read any more.
func (a *acks) release(p *Pending) {
	p.released.Store(true) // before asking, see again
	if p.unwritten.Load() {
		a.writing.Lock()
		defer a.writing.Unlock()
		a.publish([]*Pending{p})
	}
}

// take receives an answer.
func (a *acks) take(m *nats.Msg) {
	serial, err := strconv.ParseUint(m.Subject[len(a.inbox):], 36, 64)
	if err != nil {
		return
	}
	receipt, err := a.read(m)
	if err == jetstream.ErrNoStreamResponse && a.again(serial) { //nolint:errorlint // read's own
		return
	}
	a.end(serial, receipt, err)
}

// again has a publish that no stream has answered repeated after a while; false
// if that has been done often enough, or if the message may be another by now.
func (a *acks) again(serial uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.waiting[serial]
	if p == nil || p.retries == noStreamRetries || p.released.Load() {
		return false
	}
	p.retries++
	time.AfterFunc(noStreamWait, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		p.unwritten.Store(true) // before asking, see release
		if a.waiting[serial] == nil || p.released.Load() {
			p.unwritten.Store(false)
			return
		}
		a.enqueue(p)
	})
	return true
}

// end tells a publish its end, if it has not been told one.
func (a *acks) end(serial uint64, r Receipt, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.waiting[serial]; p != nil {
		a.answer(p, r, err)
	}
}

// answer ends a waiting publish. The caller holds a.mu.
func (a *acks) answer(p *Pending, r Receipt, err error) {
	delete(a.waiting, p.serial)
	<-a.window
	p.ack, p.ackErr = r, err
	p.answered.Store(true)
	p.wake()
}

// wake has all who wait look at the notices.
func (a *acks) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.waiting {
		p.wake()
	}
}

// expire ends the publishes whose time is up. It runs when the oldest one's can be.
func (a *acks) expire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, next := time.Now(), a.timeout
	for _, p := range a.waiting {
		if left := p.deadline.Sub(now); left > 0 {
			next = min(next, left)
		} else {
			a.answer(p, Receipt{}, jetstream.ErrAsyncPublishTimeout)
		}
	}
	a.expiry = nil
	if len(a.waiting) > 0 {
		a.expiry = time.AfterFunc(next, a.expire)
	}
}

// fail ends all publishes: the connection is lost, and the answers with it.
func (a *acks) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.waiting {
		a.answer(p, Receipt{}, err)
	}
}

// drain waits until nothing is in flight, by taking every place of the window.
func (a *acks) drain(most time.Duration) {
	enough := time.After(most)
	for range cap(a.window) {
		select {
		case a.window <- struct{}{}:
		case <-enough:
			return
		}
	}
}

// close is for a connection that has ended; closing twice is fine.
func (a *acks) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.fail(nats.ErrConnectionClosed)
}

// read reads an answer, by hand if it is the usual one: {"stream":"EVENTS","seq":1}.
func (a *acks) read(m *nats.Msg) (Receipt, error) {
	if rest, ok := bytes.CutPrefix(m.Data, []byte(`{"stream":"`)); ok {
		stream, rest, _ := bytes.Cut(rest, []byte(`","seq":`))
		digits, ok := bytes.CutSuffix(rest, []byte(`}`))
		if ok && !bytes.ContainsAny(stream, `"\`) {
			if sequence, err := strconv.ParseUint(string(digits), 10, 64); err == nil {
				name, known := a.streams[string(stream)]
				if !known {
					name = string(stream)
					a.streams[name] = name
				}
				return Receipt{Stream: name, Sequence: sequence}, nil
			}
		}
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return Receipt{}, jetstream.ErrNoStreamResponse
	}
	var ack struct {
		Error     *jetstream.APIError `json:"error"`
		Stream    string              `json:"stream"`
		Sequence  uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil, ack.Error == nil && ack.Stream == "":
		return Receipt{}, jetstream.ErrInvalidJSAck
	case ack.Error != nil:
		return Receipt{}, ack.Error
	}
	return Receipt{Stream: ack.Stream, Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil
}
