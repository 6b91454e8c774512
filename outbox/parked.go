package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/farandole/farandole/event"
)

// parkedPage is how many rows are read at once: what is too large to be
// published is a reason to be parked.
const parkedPage = 16

// Parked is a row that could not be published: its status is DEAD_LETTER.
type Parked struct {
	// ID is the row's, by which it is redriven and discarded.
	ID int64
	// MessageID is the event key, or what another writer chose.
	MessageID string
	Subject   string
	// Key is the row's key: the last token of the subject, in its escaped form.
	Key     string
	Headers map[string][]string // without the message id
	Data    []byte
	// Attempts are the failed tries to publish it, oldest first, those before
	// a [Outbox.Redrive] included.
	Attempts  []event.Attempt
	CreatedAt time.Time
}

// Event is the event of the row. The error matches [event.ErrDecode] if it is none.
func (p Parked) Event() (event.Event, error) { return event.Decode(p.Headers, p.Data) }

// Last is the try after which the row was parked, the zero Attempt if its story
// cannot be read.
func (p Parked) Last() event.Attempt {
	if len(p.Attempts) == 0 {
		return event.Attempt{}
	}
	return p.Attempts[len(p.Attempts)-1]
}

// Reason is why it was parked: [event.ReasonPermanent], or [event.ReasonExhausted]
// after all tries.
func (p Parked) Reason() string { return cmp.Or(p.Last().Reason, event.ReasonExhausted) }

// ParkedAt is when it was, by the relay's clock; of a row without a story, when
// it was created.
func (p Parked) ParkedAt() time.Time {
	if at := p.Last().At; !at.IsZero() {
		return at
	}
	return p.CreatedAt
}

// ParkedFilter chooses rows. Every field that is set must match; the zero filter
// matches all.
type ParkedFilter struct {
	MessageID string
	// Key is what the event is about.
	Key event.Key
	// Type is the event type, with or without the configured prefix.
	Type event.Type
	// Reason as in [Parked.Reason].
	Reason string
	// Class is the error class of the last try, Text part of its error's text, in any case.
	Class, Text string
	// After and Before bound when the row was parked: After <= time < Before.
	After, Before time.Time

	// OldestFirst turns the order, by ID, round. Defaults to the newest first.
	OldestFirst bool
	// Beyond is the ID of the row after which to go on. Defaults to the beginning.
	Beyond int64
}

func (f ParkedFilter) matches(n event.Names, p Parked) bool {
	last, at := p.Last(), p.ParkedAt()
	return (f.Reason == "" || f.Reason == p.Reason()) &&
		(f.Class == "" || f.Class == last.Class) &&
		(f.Text == "" || strings.Contains(strings.ToLower(last.Error), strings.ToLower(f.Text))) &&
		(f.After.IsZero() || !at.Before(f.After)) &&
		(f.Before.IsZero() || at.Before(f.Before)) &&
		(f.Type == "" || f.typed(n, p))
}

// typed reports whether the row's type is the filter's, going by the subject if
// there is no event in it.
func (f ParkedFilter) typed(n event.Names, p Parked) bool {
	want := strings.TrimPrefix(string(f.Type), n.TypePrefix)
	if e, err := p.Event(); err == nil {
		return strings.TrimPrefix(e.Type(), n.TypePrefix) == want
	}
	return strings.HasPrefix(p.Subject, strings.TrimSuffix(n.TypeFilter(event.Type(want)), "*"))
}

// Parked goes over the parked rows that match f, and reads some at a time, with
// their data. An error, which is the last value, matches [ErrDatabase].
func (o *Outbox) Parked(ctx context.Context, f ParkedFilter) iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		for {
			page, err := o.parkedPage(ctx, f)
			if err != nil {
				yield(Parked{}, fmt.Errorf("%w: parked: %w", ErrDatabase, err))
				return
			}
			for _, p := range page {
				if f.matches(o.cfg.Names, p) && !yield(p, nil) {
					return
				}
				f.Beyond = p.ID
			}
			if len(page) < parkedPage {
				return
			}
		}
	}
}

// parkedPage reads the next rows that match f as far as columns tell.
func (o *Outbox) parkedPage(ctx context.Context, f ParkedFilter) (page []Parked, err error) {
	key := ""
	if f.Key != "" {
		key = event.EscapeKey(f.Key)
	}
	where, order, beyond := "id < $1", "DESC", cmp.Or(f.Beyond, math.MaxInt64)
	if f.OldestFirst {
		where, order, beyond = "id > $1", "ASC", cmp.Or(f.Beyond, math.MinInt64)
	}
	rows, err := o.db.QueryContext(ctx, o.render(`
		SELECT id, message_id, subject, key, headers, data, story, {unix created_at} FROM {outbox}
		WHERE {parked} AND `+where+` AND ($2 = '' OR key = $2) AND ($3 = '' OR message_id = $3)
		ORDER BY id `+order+` LIMIT $4`), beyond, key, f.MessageID, parkedPage)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		p, err := scanParked(rows.Scan)
		if err != nil {
			return nil, err
		}
		page = append(page, p)
	}
	return page, rows.Err()
}

func scanParked(scan func(...any) error) (Parked, error) {
	var p Parked
	var headers, story string
	var created int64
	if err := scan(&p.ID, &p.MessageID, &p.Subject, &p.Key, &headers, &p.Data, &story, &created); err != nil {
		return Parked{}, err
	}
	p.CreatedAt = time.UnixMilli(created)
	// Both may be anything: headers that cannot be read are a reason to be parked.
	parsed := map[string]values{}
	if err := json.Unmarshal([]byte(headers), &parsed); err != nil {
		parsed = map[string]values{"unreadable": {headers}}
	}
	p.Headers = make(map[string][]string, len(parsed))
	for name, v := range parsed {
		p.Headers[name] = v
	}
	if err := json.Unmarshal([]byte(story), &p.Attempts); err != nil {
		p.Attempts = nil
	}
	return p, nil
}

// Redrive sets parked rows to PENDING, with all their tries before them and
// their story kept, and returns how many were parked still. The relay publishes
// them, after rows of their keys that have overtaken them. Doing it twice is
// harmless. The error matches [ErrDatabase].
func (o *Outbox) Redrive(ctx context.Context, ids ...int64) (int, error) {
	// Due now, not NULL: a relay with a feed leaves young rows without a time to
	// the feed, which tells of inserts only.
	n, err := o.change(ctx, `UPDATE {outbox} SET status = 'PENDING', attempts = 0, due_at = {now}, owner = NULL
		WHERE status = 'DEAD_LETTER' AND id {in $1}`, ids)
	if err != nil {
		return 0, fmt.Errorf("%w: redrive: %w", ErrDatabase, err)
	}
	o.Wake()
	return n, nil
}

// Discard deletes parked rows, and returns how many were parked still: their
// events will never be published. The outbox takes events of their ids again.
// The error matches [ErrDatabase].
func (o *Outbox) Discard(ctx context.Context, ids ...int64) (int, error) {
	n, err := o.change(ctx, "DELETE FROM {outbox} WHERE status = 'DEAD_LETTER' AND id {in $1}", ids)
	if err != nil {
		return 0, fmt.Errorf("%w: discard: %w", ErrDatabase, err)
	}
	return n, nil
}

// change runs a statement on ids and returns how many rows it changed.
func (o *Outbox) change(ctx context.Context, statement string, ids []int64) (int, error) {
	list, err := json.Marshal(append([]int64{}, ids...))
	if err != nil {
		return 0, err
	}
	result, err := o.db.ExecContext(ctx, o.render(statement), string(list))
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}
