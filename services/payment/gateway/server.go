package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/farandole/farandole/internal/host"
)

// Server is a gateway that listens on loopback ports of its own, so that
// services reach it as what it is: an HTTP server elsewhere. Whoever starts it
// calls [Server.Stop].
type Server struct {
	*Gateway
	// URL is the base URL for merchants, AdminURL that of books and faults.
	URL, AdminURL string

	servers []*http.Server
	served  chan error // one of each server, when it has ended
}

// Start opens the gateway's books and serves it on two free ports. Errors are
// those of [New] and of the network.
func Start(cfg Config) (*Server, error) {
	g, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{Gateway: g, served: make(chan error, 2)}
	if s.URL, err = s.serve(g.Handler()); err == nil {
		s.AdminURL, err = s.serve(g.Admin())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gateway: %w", err), s.Stop())
	}
	return s, nil
}

// serve serves h on a free port, and returns its URL.
func (s *Server) serve(h http.Handler) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := host.NewServer(h)
	s.servers = append(s.servers, server)
	go func() { s.served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), nil
}

// Stop cuts off requests under way and closes the books. It can be called once.
func (s *Server) Stop() error {
	var errs []error
	for _, server := range s.servers {
		errs = append(errs, server.Close())
	}
	for range s.servers {
		if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.Close())...)
}
