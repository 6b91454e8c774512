// Package provider runs the stand-in for a payment provider in this process,
// on loopback ports of its own, so that services reach it as what it is: an
// HTTP server elsewhere.
package provider

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/farandole/farandole/internal/host"
	"github.com/farandole/farandole/services/payment/gateway"
)

// Provider is a running gateway. Whoever starts it calls Stop.
type Provider struct {
	*gateway.Gateway
	// URL is the base URL for merchants, AdminURL that of books and faults.
	URL, AdminURL string

	servers []*http.Server
	served  chan error // one of each server, when it has ended
}

// Start opens the gateway's books and serves it on two free ports.
func Start(cfg gateway.Config) (*Provider, error) {
	g, err := gateway.New(cfg)
	if err != nil {
		return nil, err
	}
	p := &Provider{Gateway: g, served: make(chan error, 2)}
	if p.URL, err = p.serve(g.Handler()); err == nil {
		p.AdminURL, err = p.serve(g.Admin())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gateway: %w", err), p.Stop())
	}
	return p, nil
}

// serve serves h on a free port, and returns its URL.
func (p *Provider) serve(h http.Handler) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := host.NewServer(h)
	p.servers = append(p.servers, server)
	go func() { p.served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}

// Stop cuts off requests under way, and closes the books. It can be called once.
func (p *Provider) Stop() error {
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Close())
	}
	for range p.servers {
		if err := <-p.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, p.Close())...)
}
