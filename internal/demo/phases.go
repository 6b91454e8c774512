package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/letters"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/services/audit"
	"github.com/farandole/farandole/services/payment/gateway"
)

// phases goes through a run's phases, one after another.
func (r *run) phases(ctx context.Context) (Report, error) {
	begun := time.Now()
	orders, err := r.trouble(ctx)
	if err != nil {
		return Report{}, err
	}
	restless := r.settle(ctx)
	took := time.Since(begun)

	r.phase.Store(phaseReplaying)
	first, replayed, err := r.replay(ctx)
	if err != nil {
		return Report{}, err
	}
	if restless == nil {
		restless = r.settle(ctx)
	}
	r.phase.Store(phaseAuditing)
	report, err := r.audit(ctx, orders, first, replayed, restless)
	report.SagasPerSecond = math.Round(10*float64(report.Confirmed+report.Cancelled)/took.Seconds()) / 10
	return report, err
}

// trouble places all orders and injects the faults at the same time.
func (r *run) trouble(ctx context.Context) ([]placedOrder, error) {
	shop := newClient(r.shops, r.cfg.Concurrency)
	defer shop.close()
	crasher := &crasher{
		victims: r.supervisors, each: r.dose.crashes, over: 2 * r.cfg.Orders, random: r.random(2),
		events:   func() int { n, _, _ := r.watcher.counts(); return n },
		happened: func() { r.crashes.Add(1) }, notice: r.notice,
	}
	var orders []placedOrder
	ctx, cancel := r.untilStalled(ctx)
	defer cancel()
	doing, ctx := errgroup.WithContext(ctx)
	doing.Go(func() error { return r.breakGateway(ctx) })
	doing.Go(func() error { return r.poison(ctx) })
	doing.Go(func() error { return crasher.run(ctx) })
	doing.Go(func() (err error) {
		orders, err = placeAll(ctx, shop, plan(r.cfg.Orders, r.cfg.Seed, r.cfg.Faults), r.cfg, &r.placed)
		if err == nil {
			r.phase.Store(phaseSettling)
		}
		return err
	})
	if err := doing.Wait(); err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) && !errors.Is(err, errStalled) {
			err = errors.Join(cause, err)
		}
		return nil, err
	}
	return orders, nil
}

// poison stores messages that no service can handle.
func (r *run) poison(ctx context.Context) error {
	messages, err := poisonMessages(r.bus, r.dose.poison)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := send(ctx, r.bus, m); err != nil {
			return fmt.Errorf("demo: poison: %w", err)
		}
	}
	if len(messages) > 0 {
		r.notice("%s stored that no service can handle", terminal.Count(len(messages), "message", "messages"))
	}
	return nil
}

// settle waits until the system is at rest. Its error matches errRestless: nothing
// has happened for a while although something is left to do.
func (r *run) settle(ctx context.Context) error {
	ctx, cancel := r.untilStalled(ctx)
	defer cancel()
	return awaitRest(ctx, r.bus, r.store.Database)
}

// letters returns the queue of all services' dead letters.
func (r *run) letters() (*dlq.Queue, error) {
	o, err := r.store.Outbox(outbox.Config{Names: r.bus.Names()})
	if err != nil {
		return nil, err
	}
	return letters.OpenWith(o, func() (*bus.Bus, error) { return r.bus, nil }), nil
}

// replay switches the faults off and replays the dead letters that can be handled
// then. first are the letters that there were before. It also repeats some events
// that took effect long ago.
func (r *run) replay(ctx context.Context) (first []dlq.Entry, replayed int, err error) {
	queue, err := r.letters()
	if err != nil {
		return nil, 0, err
	}
	if first, err = allLetters(ctx, queue); err != nil {
		return nil, 0, err
	}
	r.payment.switchFaultOff()
	if err := r.gateway.SetFaults(gateway.Faults{}); err != nil {
		return nil, 0, err
	}
	if len(first) > 0 {
		r.notice("%s; faults mended, replaying what failed for a time", terminal.Count(len(first), "dead letter", "dead letters"))
		sum, err := queue.Replay(ctx, dlq.Selection{Filter: dlq.Filter{Reason: event.ReasonExhausted}}, dlq.ReplayOptions{}, nil)
		if err != nil {
			return nil, 0, err
		}
		replayed = sum.Counts[dlq.Replayed] + sum.Counts[dlq.AlreadyHandled]
	}
	return first, replayed, r.duplicator.finish(ctx)
}

// allLetters returns all dead letters of the queue.
func allLetters(ctx context.Context, queue *dlq.Queue) (all []dlq.Entry, err error) {
	for o := (dlq.PageOptions{Limit: 10_000}); ; {
		page, err := queue.List(ctx, dlq.Filter{}, o)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if o.Cursor = page.Next; o.Cursor == 0 {
			return all, nil
		}
	}
}

// audit checks the system and makes the report.
func (r *run) audit(ctx context.Context, orders []placedOrder, first []dlq.Entry, replayed int, restless error) (Report, error) {
	ids := make([]string, len(orders))
	for i, o := range orders {
		ids[i] = o.id
	}
	evidence, err := audit.Collect(ctx, r.bus, r.store.DB, r.gateway.AdminURL, ids)
	if err != nil {
		return Report{}, err
	}
	r.witness.Testify(&evidence)
	for _, l := range first {
		evidence.Former = append(evidence.Former, audit.LetterOf(l))
	}
	verdict := audit.Judge(evidence)
	if restless != nil {
		verdict.OK = false
		verdict.Violations = append(verdict.Violations, audit.Violation{
			Invariant: "rest", Expected: "a system with nothing left to do", Found: restless.Error(),
		})
	}
	queue, err := r.letters()
	if err != nil {
		return Report{}, err
	}
	last, err := allLetters(ctx, queue)
	if err != nil {
		return Report{}, err
	}
	injected, dropped := r.duplicator.counts()
	report := Report{
		Orders: verdict.Orders, Confirmed: verdict.Confirmed, Cancelled: verdict.Cancelled, Unfinished: verdict.Unfinished,
		DeadLettered: distinct(first, last), Replayed: replayed, Kept: len(last),
		DuplicatesInjected: injected, DuplicatesSuppressed: dropped + verdict.CopiesSuppressed,
		CrashesInjected: int(r.crashes.Load()), Events: verdict.Events,
		SagaLatencyMS: latencyOf(verdict.Latencies), Injected: r.injected(orders),
		Seed: r.cfg.Seed, Faults: r.cfg.Faults, Audit: verdict,
	}
	for _, id := range ids {
		report.Outcomes = append(report.Outcomes, verdict.Outcomes[id])
	}
	return report, nil
}

// distinct counts the events that are in at least one of the lists.
func distinct(lists ...[]dlq.Entry) int {
	ids := map[string]bool{}
	for _, list := range lists {
		for _, e := range list {
			ids[e.ID] = true
		}
	}
	return len(ids)
}
