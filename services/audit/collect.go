package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/follow"
)

// inventory is the consumer that keeps its state in the event stream.
const inventory = "inventory"

// Collect reads the evidence into memory, about a kilobyte an order. orders is the
// order service's database. booksURL is the payment gateway's base URL. expected are
// the ids of the accepted orders, nil if they are not known. An error says that the
// evidence could not be read, not that something is wrong with the system.
func Collect(ctx context.Context, b *bus.Bus, orders *sql.DB, booksURL string, expected []string) (Evidence, error) {
	e := Evidence{Expected: expected, Events: map[string][]Event{}}
	for _, step := range []struct {
		what string
		do   func(context.Context, *bus.Bus) error
	}{
		{"events", e.collectEvents},
		{"order's tables", func(ctx context.Context, b *bus.Bus) error { return e.collectTables(ctx, b, orders) }},
		{"inventory", e.collectInventory},
		{"pages", e.collectPages},
		{"dead letters", e.collectLetters},
		{"payment's marks", e.collectAttempts},
		{"gateway books", func(ctx context.Context, _ *bus.Bus) error { return e.collectBooks(ctx, booksURL) }},
	} {
		if err := step.do(ctx, b); err != nil {
			return Evidence{}, fmt.Errorf("audit: read %s: %w", step.what, err)
		}
	}
	return e, nil
}

func (e *Evidence) collectEvents(ctx context.Context, b *bus.Bus) error {
	stream := b.Names().EventsStream()
	return follow.Read(ctx, b, follow.Options{FromStart: true, NoFollow: true}, func(m follow.Message) error {
		ev, problem := m.Event()
		if problem != "" {
			e.Undecodable = append(e.Undecodable, Message{
				Sequence: m.Sequence, Subject: m.Subject,
				EventKey: string(event.EventKeyAt(stream, m.Sequence, m.Time)), Error: problem,
			})
			return nil
		}
		key := string(event.PartitionKey(ev))
		t, err := b.Names().TypeOf(ev.Type())
		if err != nil {
			t = event.Type(ev.Type())
		}
		e.collectChange(ev, key, string(t))
		e.Events[key] = append(e.Events[key], Event{
			Sequence: m.Sequence, At: m.Time, EventKey: string(event.EventKeyOf(ev)), ID: ev.ID(),
			Source: ev.Source(), Type: string(t), Causation: event.Extension(ev, event.ExtCausation),
		})
		return nil
	})
}

// item is a line of an order as the services write it.
type item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

func itemsOf(lines []item) []Item {
	items := make([]Item, len(lines))
	for i, l := range lines {
		items[i] = Item(l)
	}
	return items
}

func (e *Evidence) collectInventory(ctx context.Context, b *bus.Bus) error {
	// record has the fields of both kinds of document: one an order, one a SKU.
	type record struct {
		ID     string `json:"order_id"`
		Status string `json:"status"`
		Items  []item `json:"items"`

		SKU       string `json:"sku"`
		Initial   int64  `json:"initial"`
		Available int64  `json:"available"`
		Held      int64  `json:"held"`
		Reserved  int64  `json:"reserved"`
	}
	names := b.Names()
	return b.Scan(ctx, names.EventsStream(), names.StateFilter(inventory), func(subject string, _ uint64, data []byte) error {
		var r record
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
		if r.SKU != "" {
			e.Stock = append(e.Stock, Stock{r.SKU, r.Initial, r.Available, r.Held, r.Reserved})
		} else {
			e.Reservations = append(e.Reservations, Reservation{r.ID, r.Status, itemsOf(r.Items)})
		}
		return nil
	})
}

// pageKey is the size of an event key on a page.
const pageKey = len(event.BinaryKey{})

// collectPages reads in which order events have ended, and which ones were sent again.
func (e *Evidence) collectPages(ctx context.Context, b *bus.Bus) error {
	e.Courses = map[string]Course{}
	for _, consumer := range []string{inventory, payment} {
		c, err := courseOf(ctx, b, consumer)
		if err != nil {
			return err
		}
		if len(c.Ended) > 0 {
			e.Courses[consumer] = c
		}
	}
	return nil
}

// courseOf reads the pages of a consumer (docs/contract.md, "Pages").
func courseOf(ctx context.Context, b *bus.Bus, consumer string) (c Course, err error) {
	names := b.Names()
	pages := follow.Options{Filters: []string{names.Root("ledger." + consumer + ".*.page")}, FromStart: true, NoFollow: true}
	err = follow.Read(ctx, b, pages, func(m follow.Message) error {
		ended := len(m.Data)
		if starts := m.Header.Get("Farandole-Starts"); starts != "" {
			n, err := strconv.Atoi(starts)
			if err != nil {
				return fmt.Errorf("page %d: %w", m.Sequence, err)
			}
			ended -= n * pageKey
		}
		for at := 0; at+pageKey <= ended; at += pageKey {
			c.Ended = append(c.Ended, string(event.BinaryKey(m.Data[at:at+pageKey]).Key()))
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	again := follow.Options{Filters: []string{names.RedriveFilter(event.Consumer(consumer))}, FromStart: true, NoFollow: true}
	return c, follow.Read(ctx, b, again, func(m follow.Message) error {
		if ev, err := event.Decode(m.Header, m.Data); err == nil { // what cannot be decoded is of no order
			c.Resent = append(c.Resent, string(event.EventKeyOf(ev)))
		}
		return nil
	})
}

func (e *Evidence) collectLetters(ctx context.Context, b *bus.Bus) error {
	queue := dlq.Open(b, nil) // reading needs no ledger
	for o := (dlq.PageOptions{Limit: 10_000}); ; {
		page, err := queue.List(ctx, dlq.Filter{}, o)
		if err != nil {
			return err
		}
		for _, l := range page.Entries {
			e.Letters = append(e.Letters, LetterOf(l))
		}
		if o.Cursor = page.Next; o.Cursor == 0 {
			return nil
		}
	}
}

// LetterOf is what the audit looks at of a dead letter.
func LetterOf(l dlq.Entry) Letter {
	return Letter{l.ID, string(l.Consumer), l.Reason, string(l.EventKey), string(l.Key), l.Class}
}
