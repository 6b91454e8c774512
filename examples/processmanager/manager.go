package main

import (
	"context"
	"errors"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/consumer"
	"github.com/farandole/farandole/dedup"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/state"
)

// name is the consumer's.
const name event.Consumer = "orders"

// timer is the name of an order's timer.
const timer = "deadline"

// manager handles the events that move flows.
type manager struct {
	flows    *state.Store[flow]
	deadline time.Duration // the time that an order has
}

// placed begins the flow of an order, once.
func (m *manager) placed(ctx context.Context, e event.Event, o Order) (consumer.Step, error) {
	id := event.PartitionKey(e)
	d, err := m.flows.Get(ctx, id)
	if err != nil {
		return consumer.Step{}, err
	}
	if d.Exists {
		return consumer.Step{}, consumer.Skip
	}
	f := flow{Order: o, Phase: doing}
	return consumer.Step{
		State:  []state.Change{d.Put(f)},
		Events: []event.Draft{f.says(id)},
		Timers: []consumer.Timer{{Name: timer, After: m.deadline, Event: orderOverdue.New(id, Reply{"not completed in time"})}},
	}, nil
}

// on returns the handler of a turn of part i.
func (m *manager) on(t turn, i int) func(context.Context, event.Event, Reply) (consumer.Step, error) {
	return func(ctx context.Context, e event.Event, r Reply) (consumer.Step, error) {
		id := event.PartitionKey(e)
		d, err := m.flows.Get(ctx, id)
		if err != nil {
			return consumer.Step{}, err
		}
		f, moved := d.Value.next(t, i, r.Reason)
		if !d.Exists || !moved {
			return consumer.Step{}, consumer.Skip
		}
		step := consumer.Step{State: []state.Change{d.Put(f)}, Events: []event.Draft{f.says(id)}}
		if f.ended() {
			step.Cancel = []consumer.TimerID{{Name: timer, Key: id}}
		}
		return step, nil
	}
}

// run connects and manages orders until ctx ends.
func run(ctx context.Context, cfg bus.Config, deadline time.Duration) (err error) {
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	ledger, err := dedup.NewPartitions(b, dedup.PartitionsConfig{})
	if err != nil {
		return err
	}
	flows, err := state.Of[flow](b, ledger, name)
	if err != nil {
		return err
	}
	m := &manager{flows: flows, deadline: deadline}
	registry := consumer.NewRegistry()
	consumer.Handle(registry, orderPlaced, m.placed)
	consumer.Handle(registry, orderOverdue, m.on(overdue, 0))
	for i, p := range parts {
		consumer.Handle(registry, p.done, m.on(done, i))
		consumer.Handle(registry, p.refused, m.on(refused, i))
		consumer.Handle(registry, p.undone, m.on(undone, i))
	}
	c, err := consumer.New(b, registry, consumer.Config{Name: name, Ledger: ledger})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
