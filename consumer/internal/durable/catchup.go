package durable

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// The catch-up is made before the durable is widened: whatever dies in between,
// the next bind finds the one or the other missing. It goes when it has come to
// what was stored before the durable knew its subjects.

// Pull is what a durable's messages are taken with. It returns when ctx ends, or
// when the durable with this name is gone.
type Pull func(ctx context.Context, name string)

// catchUpName is the durable that catches up: no consumer's own name has an underscore.
func catchUpName(durable string) string { return durable + catchUpSuffix }

const catchUpSuffix = "_catchup"

// CatchesUpFor is the consumer whose durable of this name catches up, "" if it is not one that does.
func CatchesUpFor(durable string) event.Consumer {
	c, ok := strings.CutSuffix(durable, catchUpSuffix)
	if !ok {
		return ""
	}
	return event.Consumer(c)
}

// catchUpOn provides a durable that catches up on subjects which the consumer's
// durable lacks. It returns those that may be added to that one now; the others
// wait until an earlier catch-up is over.
func (d *Durable) catchUpOn(ctx context.Context, have, missing []string) ([]string, error) {
	found, err := d.Find(ctx, catchUpName(d.Name()))
	if err != nil {
		return nil, err
	}
	d.catchingUp.Store(true)
	if found != nil {
		under := filtersOf(found.Config)
		if !slices.ContainsFunc(missing, func(m string) bool { return among(under, event.SubjectsCollide, m) }) {
			return nil, nil
		}
		return under, nil
	}
	handled, told, err := d.handled(ctx)
	if err != nil {
		return nil, err
	}
	// A subject that was never handled starts where the stream does. One that may
	// have been, or that the durable has lost, starts where the ledger's memory
	// does. One catch-up has one start, so the second kind waits for the first.
	fresh := slices.DeleteFunc(slices.Clone(missing), func(f string) bool {
		return !told || among(handled, event.SubjectsCollide, f) || among(have, event.SubjectsCollide, f)
	})
	cfg := d.needs(catchUpName(d.Name()), fresh)
	cfg.Description += ", catching up"
	began, err := d.beginning().Since(ctx, false)
	if err != nil {
		return nil, err
	}
	startAt(&cfg, began)
	if len(fresh) == 0 {
		cfg.FilterSubjects = missing
		if err := d.startRemembered(ctx, &cfg, began); err != nil {
			return nil, err
		}
	}
	if _, err := d.make(ctx, cfg); err != nil {
		return nil, err
	}
	d.cfg.Logger.Info().Str("stream", d.cfg.Stream).Strs("subjects", cfg.FilterSubjects).
		Msg("subjects added to the durable; catching up on what is stored of them")
	if len(fresh) == 0 {
		d.logSkipped(ctx, cfg, "the durable had lost these subjects: what is older than the ledger remembers may have taken effect and is not delivered")
	}
	return cfg.FilterSubjects, nil
}

// Tend looks after the durable until ctx ends. It mends what others have narrowed
// or shortened, and pulls from the durable that catches up while there is one. It
// calls report after each round, with what is wrong or nil.
func (d *Durable) Tend(ctx context.Context, pull Pull, report func(error)) {
	d.catchingUp.Store(true) // a process that died may have left one
	var run *catchUp
	defer func() { run.stop() }()
	logged := ""
	for ctx.Err() == nil {
		err := d.Bind(ctx)
		if err == nil && d.catchingUp.Load() {
			run, err = d.follow(ctx, pull, run)
		}
		if ctx.Err() != nil {
			return
		}
		report(err)
		every := d.cfg.Lease / 3
		if err != nil || d.catchingUp.Load() {
			every = min(every, RetryAfter)
		}
		switch {
		case err == nil:
			logged = ""
		case logged != err.Error():
			logged = err.Error()
			d.cfg.Logger.Error().Err(err).Str("stream", d.cfg.Stream).Msg("durable is not as it should be, will try again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// catchUp is a pull from a durable that catches up.
type catchUp struct {
	created time.Time // the durable
	// goal is the end of the stream when the consumer's durable had been widened:
	// what is stored later comes by that one. The position of the consumer's durable
	// is no measure: it does not show what it has passed over without a match.
	goal   uint64
	cancel context.CancelFunc
	pull   sync.WaitGroup
}

func (u *catchUp) stop() {
	if u != nil {
		u.cancel()
		u.pull.Wait()
	}
}

// follow begins, goes on with or ends a catch-up. run is the one under way, nil if none.
func (d *Durable) follow(tend context.Context, pull Pull, run *catchUp) (*catchUp, error) {
	ctx, cancel := context.WithTimeout(tend, Timeout)
	defer cancel()
	name := catchUpName(d.Name())
	found, err := d.Find(ctx, name)
	if err != nil {
		return run, err
	}
	if run != nil && (found == nil || !found.Created.Equal(run.created)) {
		run.stop()
		run = nil
	}
	if found == nil {
		d.catchingUp.Store(false)
		return nil, nil
	}
	filters := filtersOf(found.Config)
	if !slices.ContainsFunc(filters, func(f string) bool { return among(d.cfg.Subjects, event.SubjectsCollide, f) }) {
		return nil, nil // it waits for a version that handles these
	}
	if run == nil {
		if run, err = d.beginCatchUp(tend, ctx, found, filters, pull); run == nil || err != nil {
			return nil, err
		}
	}
	last, err := d.lastOf(ctx, filters)
	if err != nil || found.AckFloor.Stream < min(last, run.goal) {
		return run, err
	}
	run.stop()
	// The server deletes by name alone, so nothing may come between the look and
	// this: another replica may delete it as well, and a third make the next one.
	if err := Remove(ctx, d.cfg.Bus, d.cfg.Stream, name); err != nil {
		return nil, err
	}
	d.cfg.Logger.Info().Str("stream", d.cfg.Stream).Strs("subjects", filters).Msg("caught up")
	return nil, nil
}

// beginCatchUp begins to pull from a durable that catches up. It returns nil while
// the consumer's durable is not widened yet. The pull goes on until tend ends.
func (d *Durable) beginCatchUp(tend, ctx context.Context, found *jetstream.ConsumerInfo, filters []string, pull Pull) (*catchUp, error) {
	first, err := d.info(ctx)
	if err != nil || first == nil || len(uncovered(filters, filtersOf(first.Config))) > 0 {
		return nil, err
	}
	if err := d.adjust(ctx, found.Config, filters); err != nil {
		return nil, err
	}
	stream, err := d.cfg.Bus.Stream(ctx, d.cfg.Stream)
	if err != nil {
		return nil, err
	}
	pulling, cancel := context.WithCancel(tend)
	run := &catchUp{created: found.Created, goal: stream.CachedInfo().State.LastSeq, cancel: cancel}
	run.pull.Go(func() { pull(pulling, found.Config.Durable) })
	return run, nil
}

// lastOf asks the stream's leader for the last sequence on the filters, 0 if
// there is nothing: a replica that lags would end a catch-up too early.
func (d *Durable) lastOf(ctx context.Context, filters []string) (last uint64, err error) {
	subject := "STREAM.MSG.GET." + d.cfg.Stream
	for _, f := range filters {
		body, err := json.Marshal(map[string]string{"last_by_subj": f})
		if err != nil {
			return 0, err
		}
		var m *nats.Msg
		err = d.cfg.Bus.Ask(ctx, subject, func(ctx context.Context) (err error) {
			m, err = d.cfg.Bus.Conn().RequestWithContext(ctx, d.cfg.Bus.APIPrefix()+subject, body)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("last message on %s: %w", f, err)
		}
		sequence, err := sequenceOf(m)
		if err != nil {
			return 0, fmt.Errorf("last message on %s: %w", f, err)
		}
		last = max(last, sequence)
	}
	return last, nil
}

// sequenceOf reads an answer of $JS.API.STREAM.MSG.GET.
func sequenceOf(m *nats.Msg) (uint64, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return 0, err
	}
	if answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return 0, answer.Error
	}
	return answer.Message.Sequence, nil
}
