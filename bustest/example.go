package bustest

import (
	"context"
	"errors"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/natsserver"
	"github.com/farandole/farandole/topology"
)

// StartBus starts a server in this process that keeps nothing, with the system's streams,
// and returns a bus on it. It is for examples and trials, which have no testing.TB; stop
// ends both. Of cfg it sets InProcess.
func StartBus(ctx context.Context, cfg bus.Config) (b *bus.Bus, stop func() error, err error) {
	srv, err := natsserver.Start(natsserver.Config{NoListen: true})
	if err != nil {
		return nil, nil, err
	}
	cfg.InProcess = srv
	if b, err = bus.Connect(ctx, cfg); err != nil {
		return nil, nil, errors.Join(err, srv.Stop())
	}
	stop = func() error { return errors.Join(b.Close(), srv.Stop()) }
	if _, err := topology.Provision(ctx, b, topology.New(b.Names(), topology.Config{})); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return b, stop, nil
}
