// Package provider runs the stand-in for a payment provider in this process,
// on a loopback port of its own, so that services reach it as what it is: an
// HTTP server elsewhere.
package provider

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/farandole/farandole/services/payment/gateway"
)

// Provider is a running gateway. Whoever starts it calls Stop.
type Provider struct {
	*gateway.Gateway
	// URL is its base URL.
	URL string

	server *http.Server
	served chan error
}

// Start opens the gateway's books and serves it on a free port.
func Start(cfg gateway.Config) (*Provider, error) {
	g, err := gateway.New(cfg)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gateway: %w", err), g.Close())
	}
	p := &Provider{
		Gateway: g,
		URL:     "http://" + listener.Addr().String(),
		server:  &http.Server{Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second},
		served:  make(chan error, 1),
	}
	go func() { p.served <- p.server.Serve(listener) }()
	return p, nil
}

// Stop cuts off requests under way, and closes the books. It can be called once.
func (p *Provider) Stop() error {
	err := p.server.Close()
	if served := <-p.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, p.Close())
}
