package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// StartCluster starts n servers as one cluster and waits until its JetStream
// leader can place streams on all of them. The servers are named after cfg.Name
// with a number and keep their data in directories of these names under
// cfg.StoreDir. Each is started again, after a Stop, with Start and its
// [Server.Config].
func StartCluster(n int, cfg Config) ([]*Server, error) {
	cfg = cfg.withDefaults()
	ports, err := FreePorts(cfg.Host, 2*n)
	if err != nil {
		return nil, fmt.Errorf("%w: cluster: %w", ErrStart, err)
	}
	var servers []*Server
	for i := range n {
		s, err := Start(cfg.member(i, ports[:n], ports[n+i]))
		if err != nil {
			return nil, errors.Join(err, stopAll(servers))
		}
		servers = append(servers, s)
	}
	for deadline := time.Now().Add(readyTimeout); !slices.ContainsFunc(servers, func(s *Server) bool { return s.leads(n) }); {
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%w: cluster: no leader of all members after %s", ErrStart, readyTimeout), stopAll(servers))
		}
		<-time.After(readyStep)
	}
	return servers, nil
}

// member is the configuration of one server of a cluster: it listens to
// clients on port, and all servers listen to each other on routes.
func (c Config) member(i int, routes []int, port int) Config {
	m := c
	m.Port = port
	m.Name = fmt.Sprintf("%s-%d", c.Name, i+1)
	if c.StoreDir != "" {
		m.StoreDir = filepath.Join(c.StoreDir, m.Name)
	}
	m.Tune = func(o *server.Options) {
		o.Cluster = server.ClusterOpts{Name: c.Name, Host: c.Host, Port: routes[i]}
		for _, port := range routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort(c.Host, strconv.Itoa(port))})
		}
		if c.Tune != nil {
			c.Tune(o)
		}
	}
	return m
}

// leads reports whether s is the leader and knows n members.
func (s *Server) leads(n int) bool { return len(s.ns.JetStreamClusterPeers()) == n }

// Ports are taken from below those that systems give to outgoing connections:
// one of these could take the port of a server that is being restarted.
const (
	lowestPort  = 20000
	highestPort = 32000
	portTries   = 100
)

// FreePorts finds n ports of host on which nothing listens now. Another process
// could take one before the server does, which then fails to start.
func FreePorts(host string, n int) ([]int, error) {
	var ports []int
	for range portTries {
		port := lowestPort + rand.N(highestPort-lowestPort) //nolint:gosec // spread, not secrecy
		if slices.Contains(ports, port) || checkFree(host, port) != nil {
			continue
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on %s", n, host)
}

func stopAll(servers []*Server) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
