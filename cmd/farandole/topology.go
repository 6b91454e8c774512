package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/services/payment"
	"github.com/farandole/farandole/topology"
)

type topologyCmd struct {
	Plan  topologyPlanCmd  `cmd:"" help:"Show what differs from what is wanted; change nothing."`
	Apply topologyApplyCmd `cmd:"" help:"Create and update what is safe; refuse what would lose data."`
}

type topologyFlags struct {
	jsonFlag
	Replicas   int `default:"1" env:"FARANDOLE_REPLICAS" help:"Replicas of every stream: 1, 3 or 5."`
	Partitions int `env:"FARANDOLE_PARTITIONS" help:"Partitions of the event stream. Default: those it has; 32 for a new stream."`
}

type topologyPlanCmd struct {
	topologyFlags
}

type topologyApplyCmd struct {
	topologyFlags
}

// Run prints the plan; a refusal is exit code 1.
func (c *topologyPlanCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "topology", func(b *bus.Bus) error {
		plan, err := topology.NewPlan(ctx, b, c.wanted(b))
		if err != nil {
			return err
		}
		return c.print(a, plan)
	})
}

// Run carries the plan out, unless a step of it is refused.
func (c *topologyApplyCmd) Run(ctx context.Context, a *app) error {
	return a.withBus(ctx, "topology", func(b *bus.Bus) error {
		plan, err := topology.NewPlan(ctx, b, c.wanted(b))
		if err != nil {
			return err
		}
		if err := c.print(a, plan); err != nil {
			return err
		}
		return topology.Apply(ctx, b, plan)
	})
}

func (c *topologyFlags) wanted(b *bus.Bus) topology.Topology {
	cfg := wantedTopology(c.Replicas)
	cfg.Partitions = c.Partitions
	return topology.New(b.Names(), cfg)
}

// print shows a plan. It returns errSilent if a step is refused.
func (c *topologyFlags) print(a *app, plan topology.Plan) error {
	var err error
	if c.JSON {
		err = a.printJSON(plan)
	} else {
		_, err = fmt.Fprintln(a.styled, strings.Join(terminal.Data([]byte(plan.String())), "\n"))
	}
	if err == nil && len(plan.Refused()) > 0 {
		a.say("farandole: topology: refused as shown, nothing was changed: change or remove those streams by hand")
		return errSilent
	}
	return err
}

// topology is what the demo's services need.
func wantedTopology(replicas int) topology.Config {
	return topology.Config{Replicas: replicas, Buckets: []string{payment.Bucket}}
}
