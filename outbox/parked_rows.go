package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

// parkedPage is how many rows are read at once: what is too large to be
// published is a reason to be parked.
const parkedPage = 16

// parkedRow is a row that was parked, as a dead letter. If it is being replayed it is the
// letter that it was before.
type parkedRow struct {
	dlq.Record
	status Status
	story  string // as its column has it
}

// selected is what [Parked.rows] reads besides what a filter tells.
type selected struct {
	newestFirst bool   // by id; else the oldest first
	messageID   string // of the only row, or how it begins
	ids         string // one of ids…, all by default
}

// Which message ids are selected; $3 is selected.messageID.
const (
	idsAll   = "$3 = ''"
	idsOne   = "message_id = $3"
	idsBegin = "substr(message_id, 1, length($3)) = $3"
)

func messageIDOf(id string) string { return strings.TrimPrefix(id, string(dlq.ConsumerOutbox)+".") }

// find reads the row of an id, or the only one whose id begins with a short one. Errors
// match [dlq.ErrNotFound], [dlq.ErrAmbiguous] or [ErrDatabase].
func (p Parked) find(ctx context.Context, id string) (found parkedRow, err error) {
	name := messageIDOf(id)
	for _, match := range []string{idsOne, idsBegin} {
		if name == "" && match == idsBegin {
			break // all do
		}
		var ids []string
		for r, err := range p.rows(ctx, dlq.Filter{}, selected{messageID: name, ids: match}) {
			if err != nil {
				return parkedRow{}, err
			}
			found, ids = r, append(ids, r.ID)
		}
		switch {
		case len(ids) == 1:
			return found, nil
		case len(ids) > 1:
			return parkedRow{}, dlq.Ambiguous(id, ids)
		}
	}
	return parkedRow{}, fmt.Errorf("%w: %s is not parked in this outbox", dlq.ErrNotFound, id)
}

// rows goes over the rows that match f, parked ones and those that are being replayed,
// and reads some at a time. An error is the last value. No index has both: among many
// rows that wait to be published those that are being replayed are looked for once.
func (p Parked) rows(ctx context.Context, f dlq.Filter, s selected) iter.Seq2[parkedRow, error] {
	return func(yield func(parkedRow, error) bool) {
		next, stop := iter.Pull2(p.rowsThat(ctx, "{replayed}", f, s))
		defer stop()
		replayed, replayedErr, more := next()
		for parked, err := range p.rowsThat(ctx, "{parked}", f, s) {
			for more && (replayedErr != nil || err == nil && replayed.Sequence > parked.Sequence == s.newestFirst) {
				if !yield(replayed, replayedErr) || replayedErr != nil {
					return
				}
				replayed, replayedErr, more = next()
			}
			if !yield(parked, err) || err != nil {
				return
			}
		}
		for more && yield(replayed, replayedErr) {
			replayed, replayedErr, more = next()
		}
	}
}

// rowsThat goes over the rows that a condition is true of, and that match f.
func (p Parked) rowsThat(ctx context.Context, condition string, f dlq.Filter, s selected) iter.Seq2[parkedRow, error] {
	return func(yield func(parkedRow, error) bool) {
		if f.Consumer != "" && f.Consumer != dlq.ConsumerOutbox {
			return
		}
		key := ""
		if f.Key != "" { // the column tells the key also of a row that is no event
			key, f.Key = event.EscapeKey(f.Key), ""
		}
		beyond := int64(math.MinInt64)
		if s.newestFirst {
			beyond = math.MaxInt64
		}
		for {
			var page []parkedRow
			var err error
			page, beyond, err = p.page(ctx, condition, key, s, beyond)
			if err != nil {
				yield(parkedRow{}, fmt.Errorf("%w: parked rows: %w", ErrDatabase, err))
				return
			}
			for _, r := range page {
				if f.Matches(p.outbox.cfg.Names, r.Entry) && !yield(r, nil) {
					return
				}
			}
			if len(page) < parkedPage {
				return
			}
		}
	}
}

// page reads the next rows beyond an id, and returns the id of the last one.
func (p Parked) page(ctx context.Context, condition, key string, s selected, beyond int64) (page []parkedRow, last int64, err error) {
	where, order := "id > $1", "ASC"
	if s.newestFirst {
		where, order = "id < $1", "DESC"
	}
	rows, err := p.outbox.db.QueryContext(ctx, p.outbox.render(`
		SELECT id, message_id, subject, key, headers, data, status, story, {unix created_at} FROM {outbox}
		WHERE `+condition+` AND `+where+` AND ($2 = '' OR key = $2) AND `+cmp.Or(s.ids, idsAll)+`
		ORDER BY id `+order+` LIMIT $4`), beyond, key, s.messageID, parkedPage)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r row
		var status Status
		var created int64
		if err := rows.Scan(&r.id, &r.messageID, &r.subject, &r.key, &r.headers, &r.data, &status, &r.story, &created); err != nil {
			return nil, 0, err
		}
		page, last = append(page, parkedRow{p.record(r, status, time.UnixMilli(created)), status, r.story}), r.id
	}
	return page, last, rows.Err()
}

// record is a row as a dead letter. What others have written may be anything: headers
// that cannot be read are a reason to be parked.
func (p Parked) record(r row, status Status, created time.Time) dlq.Record {
	headers, err := parseHeaders(r.headers)
	if err != nil {
		headers = nats.Header{"unreadable": {r.headers}}
	}
	e := dlq.Entry{
		ID:       string(dlq.ConsumerOutbox) + "." + r.messageID,
		Sequence: uint64(max(0, r.id)),
		Stored:   created, Consumer: dlq.ConsumerOutbox, Reason: event.ReasonExhausted, EventKey: event.EventKey(r.messageID),
		Key: event.Key(r.key), Count: 1, Origin: dlq.Origin{Subject: r.subject, Time: created}, Size: len(r.data),
	}
	told := readStory(r.story)
	if status != DeadLetter {
		e.Replay, told = told.replaying(status)
	}
	attempts := told.attempts() // the failed tries to publish it, oldest first
	for i, at := range attempts {
		if i > 0 && at.Number == 1 { // the first one after a replay
			e.Count++
			e.Failures = 0
		}
		e.Failures++
	}
	if n := len(attempts); n > 0 {
		first, last := attempts[0], attempts[n-1]
		e.FirstFailure, e.FirstClass, e.FirstError = first.At, first.Class, first.Error
		e.LastFailure, e.Class, e.Error, e.Host = last.At, last.Class, last.Error, last.Host
		e.Reason = cmp.Or(last.Reason, e.Reason)
		if !last.At.IsZero() {
			e.Stored = last.At // it was parked then, by the relay's clock
		}
	}
	if ev, err := event.Decode(headers, r.data); err == nil {
		e.EventID, e.Source, e.Type, e.Key = ev.ID(), ev.Source(), ev.Type(), event.PartitionKey(ev)
		e.CorrelationID = event.Extension(ev, event.ExtCorrelation)
	}
	e.Complete(p.outbox.cfg.Names)
	return dlq.Record{Entry: e, Attempts: attempts, Headers: headers, Data: r.data}
}
