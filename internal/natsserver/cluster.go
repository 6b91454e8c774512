package natsserver

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
// leader can place streams on all of them. The servers are named after cfg.Name
// with a number and keep their data in directories of these names under
// cfg.StoreDir. Each is started again, after a Stop, with Start and its
// [Server.Config].
func StartCluster(n int, cfg Config) ([]*Server, error) {
	cfg = cfg.withDefaults()
	servers, err := onFreePorts(cfg.Host, 2*n, cfg.members)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for deadline := time.Now().Add(readyTimeout); !slices.ContainsFunc(servers, func(s *Server) bool { return s.leads(n) }); {
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%w: cluster: no leader of all members after %s", ErrStart, readyTimeout), stopAll(servers))
		}
		<-time.After(readyStep)
	}
	return servers, nil
}

// members starts the servers of a cluster, which all know its ports beforehand:
// half of them are for clients.
func (c Config) members(ports []int) (servers []*Server, err error) {
	n := len(ports) / 2
	for i := range n {
		s, err := launch(c.member(i, ports[:n], ports[n+i]))
		if err != nil {
			return nil, errors.Join(err, stopAll(servers))
		}
		servers = append(servers, s)
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

func stopAll(servers []*Server) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
