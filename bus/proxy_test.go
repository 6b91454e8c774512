package bus_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and the server and can swallow what the server says.
type proxy struct {
	t        *testing.T
	listener net.Listener
	target   string
	done     sync.WaitGroup

	mu    sync.Mutex
	muted bool
	conns []net.Conn
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: l, target: target}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		p.close(l)
		p.hangUp()
		p.done.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// mute swallows what the server says; when that ends the connections, whose
// streams have holes, are closed.
func (p *proxy) mute(on bool) {
	p.mu.Lock()
	p.muted = on
	p.mu.Unlock()
	if !on {
		p.hangUp()
	}
}

func (p *proxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		p.close(c)
	}
	p.conns = nil
}

// close closes what the other side may have closed already.
func (p *proxy) close(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Error(err)
	}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", p.target)
		if err != nil {
			p.close(client)
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, upstream)
		p.mu.Unlock()
		p.done.Go(func() { p.pipe(upstream, client, false) })
		p.done.Go(func() { p.pipe(client, upstream, true) })
	}
}

func (p *proxy) pipe(to, from net.Conn, mutable bool) {
	defer p.close(to)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		muted := mutable && p.muted
		p.mu.Unlock()
		if muted {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
