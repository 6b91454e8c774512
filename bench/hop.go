package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/internal/hopbench"
	"github.com/farandole/farandole/internal/ledger"
	"github.com/farandole/farandole/internal/terminal"
)

// variant is one way to do the hop.
type variant struct {
	Name string
	run  hopbench.Runner
}

// The variants' names, as in the targets.
const (
	nameRaw       = "raw"
	nameNaive     = "naive"
	nameWatermill = "watermill"
	nameGroup     = "pcgroups"
	nameKV        = "farandole kv"
	namePartition = "farandole partition"
	nameKVBound   = "kv by hand"
	namePages     = "pages by hand"
)

func variants() []variant {
	return []variant{
		{nameRaw, raw},
		{nameNaive, naive},
		{nameWatermill, watermillHop},
		{nameGroup, groupHop},
		{nameKV, hopbench.Farandole(ledger.KV, hopbench.DefaultConcurrency)},
		{namePartition, hopbench.Farandole(ledger.Partition, hopbench.DefaultConcurrency)},
		{nameKVBound, kvByHand},
		{namePages, pagesByHand},
	}
}

// about says what a variant is.
func about(name string) string {
	switch name {
	case nameRaw:
		return "unsafe loop: consume, publish async, ack"
	case nameNaive:
		return fmt.Sprintf("exact: KV create, publish, KV update, ack; %d goroutines", naiveWorkers)
	case nameWatermill:
		return fmt.Sprintf("no dedup; watermill-nats, %d subscribers", watermillSubscribers)
	case nameGroup:
		return "unsafe loop on orbit.go's partitioned consumer group, one member"
	case nameKVBound:
		return "bound: what the KV ledger writes, pipelined, and nothing else"
	case namePages:
		return "bound: what the partition ledger writes, and nothing else"
	default:
		return fmt.Sprintf("exact; %d handlers", hopbench.DefaultConcurrency)
	}
}

// setting is how servers and streams are set up.
type setting struct {
	name     string
	about    string
	servers  int // and replicas
	sync     bool
	eventsOf func(n int) int
}

const (
	settingR1   = "r1"
	settingSync = "sync"
	settingR3   = "r3"
)

func settings() []setting {
	return []setting{
		{settingR1, "one replica, file", 1, false, func(n int) int { return n }},
		{settingSync, "one replica, file, sync_interval: always", 1, true, func(n int) int { return n / 8 }},
		{settingR3, "three replicas, file, three servers", 3, false, func(n int) int { return n / 2 }},
	}
}

func settingNames() (names []string) {
	for _, s := range settings() {
		names = append(names, s.name)
	}
	return names
}

// hopSetting are the figures of one setting.
type hopSetting struct {
	Setting  string       `json:"setting"`
	Events   int          `json:"events"`
	Variants []hopVariant `json:"variants"`
}

type hopVariant struct {
	Name   string    `json:"name"`
	Runs   []float64 `json:"hops_per_second"`
	Median float64   `json:"median"`
	ToRaw  float64   `json:"ratio_to_raw"`
}

// hop measures all variants in all settings.
func (b *bench) hop(ctx context.Context) error {
	for _, set := range settings() {
		if !slices.Contains(b.settings, set.name) {
			continue
		}
		figures, err := b.hopSetting(ctx, set)
		if err != nil {
			return fmt.Errorf("%s: %w", set.name, err)
		}
		b.results.Hop = append(b.results.Hop, figures)
		if err := b.printHop(set, figures); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) hopSetting(ctx context.Context, set setting) (f hopSetting, err error) {
	s, err := b.start(ctx, set.name, set.servers, set.sync)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return b.compare(ctx, s.url, set, variants())
}

// compare runs the variants in turn, the first of which is what the others are
// compared with.
func (b *bench) compare(ctx context.Context, url string, set setting, all []variant) (hopSetting, error) {
	f := hopSetting{Setting: set.name, Events: set.eventsOf(b.hops)}
	connect := bus.Config{URL: url}
	cfg := hopbench.Config{Events: f.Events, Replicas: set.servers}

	warm := cfg
	warm.Events = max(f.Events/4, 1)
	result, err := hopbench.Run(ctx, connect, warm, raw)
	if err != nil {
		return f, fmt.Errorf("warming up: %w", err)
	}
	b.results.Server = result.Server

	for _, v := range all {
		f.Variants = append(f.Variants, hopVariant{Name: v.Name})
	}
	for rep := range b.reps {
		for i := range all {
			i = (i + rep) % len(all) // nobody is always the first
			r, err := hopbench.Run(ctx, connect, cfg, all[i].run)
			if err != nil {
				return f, fmt.Errorf("%s: %w", all[i].Name, err)
			}
			f.Variants[i].Runs = append(f.Variants[i].Runs, r.HopsPerSec)
			b.say("hop %s %d/%d: %s: %s/s", set.name, rep+1, b.reps, all[i].Name, terminal.Number(int(r.HopsPerSec)))
		}
	}
	for i := range f.Variants {
		f.Variants[i].Median = median(f.Variants[i].Runs)
		f.Variants[i].ToRaw = f.Variants[i].Median / median(f.Variants[0].Runs)
	}
	return f, nil
}

func (b *bench) printHop(set setting, f hopSetting) error {
	if err := b.title("hop, %s: %s events of %d bytes, median of %d", set.about, terminal.Number(f.Events), hopbench.DataBytes, b.reps); err != nil {
		return err
	}
	table := terminal.NewTable("", ">hops/s", ">to raw", ">least", ">most", "")
	for _, v := range f.Variants {
		table.Row(v.Name, terminal.Number(int(v.Median)), ratio(v.ToRaw, 1),
			terminal.Number(int(slices.Min(v.Runs))), terminal.Number(int(slices.Max(v.Runs))), about(v.Name))
	}
	_, err := table.WriteTo(b.out)
	return err
}
