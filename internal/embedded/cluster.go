package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// StartCluster starts n servers as one cluster and waits until its JetStream
// leader can place streams on all of them. The servers are named after cfg.Name with a number, and
// keep their data in directories of these names under cfg.StoreDir.
// Each is started again, after a Stop, with Start and its [Server.Config].
func StartCluster(n int, cfg Config) ([]*Server, error) {
	cfg = cfg.withDefaults()
	ports, err := freePorts(cfg.Host, n)
	if err != nil {
		return nil, fmt.Errorf("%w: cluster: %w", ErrStart, err)
	}
	var servers []*Server
	for i := range n {
		s, err := Start(cfg.member(i, ports))
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

// member is the configuration of one server of a cluster.
func (c Config) member(i int, ports []int) Config {
	m := c
	m.Name = fmt.Sprintf("%s-%d", c.Name, i+1)
	if c.StoreDir != "" {
		m.StoreDir = filepath.Join(c.StoreDir, m.Name)
	}
	m.Tune = func(o *server.Options) {
		o.Cluster = server.ClusterOpts{Name: c.Name, Host: c.Host, Port: ports[i]}
		for _, port := range ports {
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

// freePorts finds n free ports. Another process could take one before the
// server does, which then fails to start.
func freePorts(host string, n int) ([]int, error) {
	var ports []int
	var listeners []net.Listener // open until the end, so that the ports differ
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return ports, errors.Join(errs...)
}

func stopAll(servers []*Server) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
