package wiretap

import (
	"errors"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// Verdict is what becomes of a frame.
type Verdict int

// The verdicts. A frame that breaks or cuts the connection is lost itself.
const (
	Pass  Verdict = iota
	Drop          // it is lost
	Break         // the connection breaks; the client can make another
	Cut           // the connection breaks, and there will be no other
)

// A Hook judges frames. A frame is one message of the NATS client protocol,
// as it is on the wire, with its payload; the hook must not keep it.
type Hook func(frame []byte) Verdict

// Tap is a [nats.InProcessConnProvider] in front of a server's own.
type Tap struct {
	server         nats.InProcessConnProvider
	sent, received Hook

	once sync.Once
	cut  chan struct{}
}

// New returns a tap for one client of server. sent judges what the client
// sends, received what it is sent; nil lets everything pass. Each is called for
// one frame after another, the two at the same time.
func New(server nats.InProcessConnProvider, sent, received Hook) *Tap {
	return &Tap{server: server, sent: sent, received: received, cut: make(chan struct{})}
}

// errCut is what a client gets that has been cut off.
var errCut = errors.New("wiretap: the client is cut off")

// InProcessConn makes a connection.
func (t *Tap) InProcessConn() (net.Conn, error) {
	select {
	case <-t.cut:
		return nil, errCut
	default:
	}
	c, err := t.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, tap: t}, nil
}

// IsCut is closed when the client has been cut off.
func (t *Tap) IsCut() <-chan struct{} { return t.cut }

// Nth gives v to the n-th frame, counted from 1, for which match holds, and
// lets all others pass.
func Nth(n int, v Verdict, match func(frame []byte) bool) Hook {
	var mu sync.Mutex
	return func(frame []byte) Verdict {
		if !match(frame) {
			return Pass
		}
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			return v
		}
		return Pass
	}
}

// conn is one connection of the client.
type conn struct {
	net.Conn
	tap *Tap

	outgoing, incoming []byte // frames that are not complete yet
	ready              []byte // judged, to be read
	chunk              [16 << 10]byte
}

// Write sends the frames that b completes. The client writes one at a time.
func (c *conn) Write(b []byte) (int, error) {
	c.outgoing = append(c.outgoing, b...)
	pass, err := c.judge(&c.outgoing, c.tap.sent)
	if _, werr := c.Conn.Write(pass); werr != nil {
		return 0, werr
	}
	if err != nil {
		return 0, errors.Join(err, c.Close())
	}
	return len(b), nil
}

// Read reads frames that have passed.
func (c *conn) Read(b []byte) (int, error) {
	for len(c.ready) == 0 {
		n, err := c.Conn.Read(c.chunk[:])
		if err != nil {
			return 0, err
		}
		c.incoming = append(c.incoming, c.chunk[:n]...)
		if c.ready, err = c.judge(&c.incoming, c.tap.received); err != nil {
			return 0, errors.Join(err, c.Close())
		}
	}
	n := copy(b, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// errBroken ends a connection.
var errBroken = errors.New("wiretap: connection broken")

// judge takes the complete frames off buffered and returns those that pass,
// and an error if the connection ends with the next.
func (c *conn) judge(buffered *[]byte, hook Hook) (pass []byte, err error) {
	for {
		n := frameLength(*buffered)
		if n == 0 {
			return pass, nil
		}
		frame := (*buffered)[:n]
		*buffered = (*buffered)[n:]
		verdict := Pass
		if hook != nil {
			verdict = hook(frame)
		}
		switch verdict {
		case Pass:
			pass = append(pass, frame...)
		case Drop:
		case Break:
			return pass, errBroken
		case Cut:
			c.tap.once.Do(func() { close(c.tap.cut) })
			return pass, errCut
		}
	}
}
