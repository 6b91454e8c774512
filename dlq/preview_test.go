package dlq_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/event"
)

func TestPreview_says_how_many_of_which_kinds_and_shows_three(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 5 {
		f.park("payment", n)
	}
	f.check(f.send(f.letter("audit", 7, f.event(7), event.ReasonPermanent, "no such account")))
	p, err := f.queue.Preview(t.Context(), dlq.Selection{All: true})
	f.check(err)
	if p.Total != 6 || len(p.Examples) != 3 || len(p.Kinds) != 2 || p.Kinds[0].Count != 5 || p.Kinds[0].Consumer != "payment" ||
		p.Kinds[0].Error != "order <n> timed out" || p.Kinds[1].Consumer != "audit" || p.Kinds[1].Type != "order.placed.v1" {
		t.Errorf("%+v", p)
	}
	p, err = f.queue.Preview(t.Context(), dlq.Selection{IDs: []string{id(1), id(99)}})
	if f.check(err); p.Total != 1 || p.Examples[0].ID != id(1) {
		t.Errorf("by id: %+v", p)
	}
	p, err = f.queue.Preview(t.Context(), dlq.Selection{Filter: dlq.Filter{Key: "nothing"}})
	if f.check(err); p.Total != 0 {
		t.Errorf("nothing: %+v", p)
	}
}

func TestShort_ids_name_one_letter(t *testing.T) {
	t.Parallel()
	f := setup(t)
	first := map[byte]int{}
	for n := range 40 {
		f.park("payment", n)
		first[key(n)[0]]++
	}
	for n := range 40 {
		for _, short := range []string{id(n)[:len("payment.")+8], string(key(n))[:8]} {
			if c, err := f.queue.Get(t.Context(), short); err != nil || c.ID != id(n) {
				t.Fatalf("%s: %s, %v", short, c.ID, err)
			}
		}
		_, err := f.queue.Get(t.Context(), string(key(n))[:1])
		if (first[key(n)[0]] > 1) != errors.Is(err, dlq.ErrAmbiguous) || err != nil && !strings.Contains(err.Error(), id(n)) && first[key(n)[0]] <= 10 {
			t.Errorf("one letter of %d: %v", first[key(n)[0]], err)
		}
	}
	sum, results := f.replay(dlq.Selection{IDs: []string{string(key(3))[:8]}}, dlq.ReplayOptions{})
	f.expect(sum, map[dlq.Status]int{dlq.Replayed: 1})
	if results[0].ID != id(3) {
		t.Errorf("replayed %s", results[0].ID)
	}
	if _, err := f.queue.Get(t.Context(), "audit."+string(key(3))[:8]); !errors.Is(err, dlq.ErrNotFound) {
		t.Errorf("of another consumer: %v", err)
	}
}

func TestKey_of_what_cannot_be_decoded_is_that_of_its_subject(t *testing.T) {
	t.Parallel()
	f := setup(t)
	m := &nats.Msg{Subject: f.names.Stored(f.names.EventSubject("order.placed.v1", "ord/7"), 32), Header: nats.Header{}, Data: []byte("no event")}
	f.parkAgain("payment", 1, m, event.ReasonDecode)
	if e := f.list(dlq.Filter{Key: "ord/7"}, dlq.PageOptions{}).Entries; len(e) != 1 || e[0].Key != "ord/7" || e[0].Type != "order.placed.v1" {
		t.Errorf("%+v", e)
	}
}
