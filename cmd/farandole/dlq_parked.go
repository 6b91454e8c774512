package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/outbox"
)

const (
	// parkedConsumer stands where a dead letter has its consumer.
	parkedConsumer = "outbox"
	// parkedPrefix and the message id are the id of a parked row.
	parkedPrefix = parkedConsumer + "."
)

// pending is what became of a parked row that is replayed: a relay goes on with it.
const pending dlq.Status = "pending"

// parked is the part of the filter that the outbox knows of.
func (f dlqFilter) parked(now time.Time) outbox.ParkedFilter {
	all := f.filter(now)
	return outbox.ParkedFilter{
		Key: all.Key, Type: all.Type, Reason: all.Reason, Class: all.Class, Text: all.Text, After: all.After, Before: all.Before,
	}
}

// ofOutbox and ofLetters report which of the two the filter can match.
func (f dlqFilter) ofOutbox() bool { return f.Consumer == "" || f.Consumer == parkedConsumer }

func (f dlqFilter) ofLetters(a *app) bool {
	return f.Consumer != parkedConsumer || !a.root.DLQ.Outbox.given()
}

// eachParked calls do for the rows that match, until it returns false.
func (f dlqFilter) eachParked(ctx context.Context, a *app, o *outbox.Outbox, oldestFirst bool, do func(outbox.Parked, dlq.Entry) bool) error {
	if !f.ofOutbox() {
		return nil
	}
	filter := f.parked(a.now())
	filter.OldestFirst = oldestFirst
	for row, err := range o.Parked(ctx, filter) {
		if err != nil {
			return err
		}
		e := parkedEntry(row)
		if (f.Fingerprint == "" || f.Fingerprint == e.Fingerprint) && !do(row, e) {
			return nil
		}
	}
	return nil
}

// parkedEntry shows a row as dead letters are shown.
func parkedEntry(p outbox.Parked) dlq.Entry {
	last := p.Last()
	e := dlq.Entry{
		ID: parkedPrefix + p.MessageID, Sequence: uint64(max(0, p.ID)), Stored: p.ParkedAt(),
		Consumer: parkedConsumer, Reason: p.Reason(), EventKey: event.EventKey(p.MessageID), Key: event.Key(p.Key),
		Class: last.Class, Error: last.Error, LastFailure: last.At, Host: last.Host, Count: 1,
		Origin: dlq.OriginDetail{Subject: p.Subject, Time: p.CreatedAt}, Size: len(p.Data),
	}
	for i, at := range p.Attempts {
		if i > 0 && at.Number == 1 { // redriven
			e.Count++
			e.Failures = 0
		}
		e.Failures++
	}
	if len(p.Attempts) > 0 {
		first := p.Attempts[0]
		e.FirstFailure, e.FirstClass, e.FirstError = first.At, first.Class, first.Error
	}
	if ev, err := p.Event(); err == nil {
		e.EventID, e.Source, e.Type, e.Key = ev.ID(), ev.Source(), ev.Type(), event.PartitionKey(ev)
		e.CorrelationID = event.Extension(ev, event.ExtCorrelation)
	}
	e.Fingerprint = dlq.Fingerprint(e.Class, e.Error, e.Type)
	return e
}

func parkedRecord(p outbox.Parked) dlq.Record {
	return dlq.Record{Entry: parkedEntry(p), Attempts: p.Attempts, Headers: p.Headers, Data: p.Data}
}

// parkedPage is the part of a list that is in the outbox, at most limit entries.
func (f dlqFilter) parkedPage(ctx context.Context, a *app, limit int) (page dlq.Page, err error) {
	err = a.withOutbox(ctx, func(ctx context.Context, o *outbox.Outbox) error {
		stats, err := o.Stats(ctx)
		if err != nil {
			return err
		}
		page.Total = int(stats.Parked)
		all := f == dlqFilter{}
		err = f.eachParked(ctx, a, o, false, func(_ outbox.Parked, e dlq.Entry) bool {
			if len(page.Entries) < limit {
				page.Entries = append(page.Entries, e)
			}
			page.Matching++
			return !all || page.Matching < limit
		})
		if all {
			page.Matching = page.Total
		}
		return err
	})
	return page, err
}

// parkedCase is a row as show tells it.
func parkedCase(ctx context.Context, o *outbox.Outbox, id string) (dlq.Case, error) {
	for p, err := range o.Parked(ctx, outbox.ParkedFilter{MessageID: strings.TrimPrefix(id, parkedPrefix)}) {
		if err != nil {
			return dlq.Case{}, err
		}
		record := parkedRecord(p)
		return dlq.Case{ID: id, Letter: &record, Verdict: "parked in the outbox: it was never published; a replay has a relay try again"}, nil
	}
	return dlq.Case{}, fmt.Errorf("%w: %s is not parked in this outbox", dlq.ErrNotFound, id)
}

// overParked walks over the selected rows, oldest first, and calls do for each;
// it returns how many became what, and the ids that are not of rows.
func (s dlqSelection) overParked(ctx context.Context, a *app, perSecond float64, r *results,
	do func(context.Context, *outbox.Outbox, int64) (dlq.Status, error),
) (sum dlq.Summary, letters []string, err error) {
	sum, letters = dlq.Summary{Counts: map[dlq.Status]int{}}, s.IDs
	if !a.root.DLQ.Outbox.given() {
		return sum, letters, nil
	}
	if f := s.filter(a.now()); len(s.IDs) > 0 && (s.All || f != dlq.Filter{}) || len(s.IDs) == 0 && !s.All && f == (dlq.Filter{}) {
		return sum, nil, usageErrorf("name ids, or a filter, or --all")
	}
	err = a.withOutbox(ctx, func(ctx context.Context, o *outbox.Outbox) error {
		var rows []target
		if rows, letters, err = s.parkedTargets(ctx, a, o); err != nil {
			return err
		}
		sum.Selected = len(rows)
		limiter := rate.NewLimiter(rate.Limit(cmp.Or(perSecond, math.Inf(1))), 1)
		for _, t := range rows {
			if err := limiter.Wait(ctx); err != nil {
				return err
			}
			status := dlq.NotFound
			if t.row != 0 {
				if status, err = do(ctx, o, t.row); err != nil {
					return err
				}
			}
			sum.Counts[status]++
			r.add(dlq.Result{ID: t.id, Status: status})
		}
		return nil
	})
	return sum, letters, err
}

// target is a selected row, 0 if it is not there.
type target struct {
	id  string
	row int64
}

func (s dlqSelection) parkedTargets(ctx context.Context, a *app, o *outbox.Outbox) (rows []target, letters []string, err error) {
	if len(s.IDs) == 0 {
		err := s.eachParked(ctx, a, o, true, func(p outbox.Parked, e dlq.Entry) bool {
			rows = append(rows, target{e.ID, p.ID})
			return true
		})
		return rows, nil, err
	}
	for _, id := range s.IDs {
		message, ofOutbox := strings.CutPrefix(id, parkedPrefix)
		if !ofOutbox {
			letters = append(letters, id)
			continue
		}
		t := target{id: id}
		for p, err := range o.Parked(ctx, outbox.ParkedFilter{MessageID: message}) {
			if err != nil {
				return nil, nil, err
			}
			t.row = p.ID
		}
		rows = append(rows, t)
	}
	return rows, letters, nil
}

// changed is what became of a row, n of which were still parked.
func changed(n int, status dlq.Status) dlq.Status {
	if n == 0 {
		return dlq.NotFound
	}
	return status
}
