package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// saga appends events of these types to one order. Each is caused by the one before.
func (e *Evidence) saga(id string, steps ...string) {
	last := ""
	for _, t := range steps {
		domain, _, _ := strings.Cut(t, ".")
		n := uint64(len(e.Events[id]) + 1)
		ev := Event{Sequence: n, EventKey: id + "-" + t, ID: id + "-" + t, Source: "/" + domain, Type: t, Causation: last}
		if rules[t].outside && (n == 1 || !slices.Contains(rules[t].causes, e.Events[id][n-2].Type)) {
			ev.Causation = ""
		}
		e.Events[id] = append(e.Events[id], ev)
		last = ev.ID
	}
}

// sound returns evidence without violations: one order for each way through the saga.
func sound() Evidence {
	e := Evidence{
		Expected: []string{"good", "poor", "empty", "regret", "late", "stuck"},
		Orders: []Order{
			{"good", "confirmed", "EUR", 5000, []Item{{"widget", 2}}},
			{"poor", "cancelled", "EUR", 2500, []Item{{"widget", 1}}},
			{"empty", "cancelled", "EUR", 9900, []Item{{"unicorn", 1}}},
			{"regret", "cancelled", "EUR", 2500, []Item{{"widget", 1}}},
			{"late", "cancelled", "EUR", 2500, []Item{{"widget", 1}}},
			{"stuck", "pending", "EUR", 2500, []Item{{"widget", 1}}},
		},
		Events: map[string][]Event{},
		Charges: []Charge{
			{"ch-1", "good", "EUR", 5000, 0},
			{"ch-2", "empty", "EUR", 9900, 9900},
		},
		Stock: []Stock{
			{"widget", 100, 97, 1, 2},
			{"unicorn", 0, 0, 0, 0},
		},
		Reservations: []Reservation{
			{"good", "settled", []Item{{"widget", 2}}},
			{"empty", "rejected", []Item{{"unicorn", 1}}},
			{"regret", "released", nil},
			{"late", "released", nil},
			{"stuck", "reserved", []Item{{"widget", 1}}},
		},
		Letters: []Letter{
			{"payment.stuck-order.placed.v1", "payment", "exhausted", "stuck-order.placed.v1", "stuck", "panic"},
			{"payment.garbage", "payment", "decode", "garbage", "", "decode"},
			{"payment.forged", "payment", "permanent", "forged", "nobody", "error"},
		},
		Undecodable: []Message{{Sequence: 99, Subject: "events.order.placed.v1.x", EventKey: "garbage"}},
	}
	e.saga("good", placed, captured, reserved, confirmed)
	e.saga("poor", placed, declined, cancelled)
	e.saga("empty", placed, captured, rejected, refunded, cancelled)
	e.saga("regret", placed, cancelRequested, released, refunded, cancelled)
	e.saga("late", placed, deadline, cancelRequested, released, refunded, cancelled)
	e.saga("stuck", placed)
	e.saga("unsent") // its first event could not be published
	e.Expected = append(e.Expected, "unsent")
	e.Orders = append(e.Orders, Order{"unsent", "placed", "EUR", 2500, []Item{{"widget", 1}}})
	e.Courses = map[string]Course{
		"inventory": {Ended: []string{"good-" + captured, "late-" + cancelRequested, "regret-" + cancelRequested, "empty-" + captured, "good-" + confirmed}},
		"payment":   {Ended: []string{"good-" + placed, "empty-" + placed, "empty-" + rejected}},
	}
	e.outbox("good", placed, confirmed)
	e.outbox("late", placed, cancelRequested, cancelled)
	e.Outbox = append(e.Outbox,
		Row{ID: 8, MessageID: "timer", Subject: "timer.order.deadline.late", Order: "late", Status: "PUBLISHED"},
		Row{ID: 9, MessageID: "timer-2", Subject: "timer.order.deadline.late", Order: "late", Status: "PUBLISHED"},
		Row{ID: 10, MessageID: "unsent-x", Subject: "events.order.placed.v1.unsent", Event: true, Order: "unsent", Status: "DEAD_LETTER", Attempts: 5})
	e.Inbox = []Mark{{"order", "good-" + captured, "done"}, {"order", "garbage", "parked"}, {"order", "gone", "discarded"}}
	e.Letters = append(e.Letters, Letter{"order.garbage", "order", "decode", "garbage", "", "decode"})
	e.Events["nobody"] = []Event{{Sequence: 98, EventKey: "forged", ID: "forged", Source: "/mallory", Type: placed}}
	e.Events["payment-gateway"] = []Event{{Sequence: 97, EventKey: "opened", ID: "payment-gateway-1-2", Source: "/payment", Type: opened}}
	e.outage()
	return e
}

// moment is so many times five seconds after the gateway has failed.
func moment(n int) time.Time { return time.Unix(int64(1000+5*n), 0) }

// outage appends an outage: the breaker opens at moment 1, a probe fails at 3, and
// others succeed at 5. Attempts are spent before and afterwards.
func (e *Evidence) outage() {
	change := func(term, at, until int, eventType string) {
		c := Change{
			Key: "payment-gateway", ID: fmt.Sprint("payment-gateway-1-", term), Source: "/payment", Type: eventType,
			Consumer: "payment", Breaker: "gateway", Opened: 1, At: moment(at), By: "host 1",
		}
		if until > 0 {
			c.Until = moment(until)
		}
		e.Changes = append(e.Changes, c)
	}
	change(7, 5, 0, closed)
	change(2, 1, 3, opened)
	change(3, 3, 5, halfOpened)
	change(4, 4, 5, opened)
	change(6, 5, 7, halfOpened)
	e.fail("good", 0, "resilience.statusError")
	e.fail("good", 1, "resilience.statusError") // in a process that has not heard yet
	e.fail("stuck", 2, "panic")
	e.fail("good", 6, "resilience.statusError")
}

// fail appends a failed attempt of payment at an order, at a time.
func (e *Evidence) fail(id string, at int, class string) {
	e.Attempts = append(e.Attempts, Attempt{
		Consumer: "payment", EventKey: id + "-" + placed, At: moment(at).Add(time.Millisecond), Class: class, Error: "gateway: 503",
	})
}

// swap exchanges two ends of a consumer; of one place it makes a second end.
func swap(e *Evidence, consumer string, i, j int) {
	c := e.Courses[consumer]
	if c.Ended[i], c.Ended[j] = c.Ended[j], c.Ended[i]; i == j {
		c.Ended = append(c.Ended, c.Ended[i])
	}
	e.Courses[consumer] = c
}

// resend says that an event was sent to a consumer again.
func (e *Evidence) resend(consumer, key string) {
	c := e.Courses[consumer]
	c.Resent = append(c.Resent, key)
	e.Courses[consumer] = c
}

// outbox appends the published rows of some of an order's events.
func (e *Evidence) outbox(id string, types ...string) {
	for _, t := range types {
		e.Outbox = append(e.Outbox, Row{
			ID: int64(len(e.Outbox) + 1), MessageID: id + "-" + t, Subject: "events." + t + "." + id, Event: true, Order: id, Status: "PUBLISHED",
		})
	}
}

// reserve sets widgets aside, or lets them leave the stock, for an order.
func (e *Evidence) reserve(id, status string, widgets int64) {
	e.Reservations = append(e.Reservations, Reservation{id, status, []Item{{"widget", widgets}}})
	e.Stock[0].Available -= widgets
	if status == statusReserved {
		e.Stock[0].Held += widgets
	} else {
		e.Stock[0].Reserved += widgets
	}
}

// eventOf returns a pointer to an order's event of a type.
func (e *Evidence) eventOf(id, t string) *Event {
	i := slices.IndexFunc(e.Events[id], func(ev Event) bool { return ev.Type == t })
	return &e.Events[id][i]
}

func (e *Evidence) remove(id, t string) {
	e.Events[id] = slices.DeleteFunc(e.Events[id], func(ev Event) bool { return ev.Type == t })
}

func TestCheck_finds_nothing_in_a_sound_run(t *testing.T) {
	t.Parallel()
	if got := Check(sound()); len(got) != 0 {
		t.Errorf("violations: %v", got)
	}
}

func TestCheck_suffers_copies(t *testing.T) {
	t.Parallel()
	e := sound()
	again := *e.eventOf("good", captured)
	again.Sequence = 50
	e.Events["good"] = append(e.Events["good"], again)
	if got := Check(e); len(got) != 0 {
		t.Errorf("violations: %v", got)
	}
}

// An event that was replayed was handled late, and that is no violation.
func TestCheck_suffers_a_replay(t *testing.T) {
	t.Parallel()
	e := sound()
	ended := e.Courses["inventory"].Ended
	e.Courses["inventory"] = Course{Ended: append(ended[1:], ended[0]), Resent: []string{ended[0]}}
	if got := Check(e); len(got) != 0 {
		t.Errorf("violations: %v", got)
	}
}

// A deadline that comes after the order has ended causes nothing, and that is no violation.
func TestCheck_suffers_a_late_deadline(t *testing.T) {
	t.Parallel()
	e := sound()
	for _, id := range []string{"good", "poor"} {
		e.Events[id] = append(e.Events[id], Event{EventKey: id + "-due", ID: id + "-due", Source: "/order", Type: deadline, Causation: id + "-" + placed})
	}
	if got := Check(e); len(got) != 0 {
		t.Errorf("violations: %v", got)
	}
}

// Each case breaks one invariant. The audit must name the invariant and the order.
func TestCheck_names_what_is_broken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		breakIt   func(e *Evidence)
		invariant string
		order     string
		says      string
	}{
		{"order not final", func(e *Evidence) { e.Orders[0].Status = "paid" }, Final, "good", "status paid"},
		{"no letter for the stuck order", func(e *Evidence) { e.Letters = e.Letters[1:] }, Final, "stuck", "dead letter"},
		{"accepted order without record", func(e *Evidence) { e.Expected = append(e.Expected, "ghost") }, Final, "ghost", "none"},
		{"order lost, its event stored", func(e *Evidence) { e.Orders = e.Orders[1:] }, Stored, "good", "a row in the orders table, as order.placed.v1 is in the stream"},
		{"order not in the stream", func(e *Evidence) { delete(e.Events, "poor") }, Stored, "poor", "none"},

		{"charged twice", func(e *Evidence) { e.Charges = append(e.Charges, Charge{"ch-3", "good", "EUR", 5000, 0}) }, Money, "good", "ch-1 of 5000 EUR, ch-3 of 5000 EUR"},
		{"charged and given back twice", func(e *Evidence) { e.Charges = append(e.Charges, Charge{"ch-3", "good", "EUR", 5000, 5000}) }, Money, "good", "2: "},
		{"confirmed without a charge", func(e *Evidence) { e.Charges = e.Charges[1:] }, Money, "good", "5000 EUR kept"},
		{"charged too much", func(e *Evidence) { e.Charges[0].Amount++ }, Money, "good", "5001"},
		{"charged in another currency", func(e *Evidence) { e.Charges[0].Currency = "USD" }, Money, "good", "USD"},
		{"cancelled but not refunded", func(e *Evidence) { e.Charges[1].Refunded = 0 }, Money, "empty", "9900"},
		{"refunded more than charged", func(e *Evidence) { e.Charges[1].Refunded = 9999 }, Money, "empty", "9999"},
		{"confirmed but refunded", func(e *Evidence) { e.Charges[0].Refunded = 5000 }, Money, "good", "found 0"},
		{"charge for nobody", func(e *Evidence) { e.Charges = append(e.Charges, Charge{"ch-9", "who", "EUR", 1, 1}) }, Money, "who", "ch-9"},

		{"piece vanished", func(e *Evidence) { e.Stock[0].Available-- }, StockKept, "", "100 of widget"},
		{"piece appeared", func(e *Evidence) { e.Stock[0].Available++ }, StockKept, "", "101"},
		{"less than nothing available", func(e *Evidence) { e.Stock[1].Available, e.Stock[1].Held = -1, 1 }, StockKept, "", "-1 available"},
		{"less than nothing held", func(e *Evidence) { e.Stock[1].Available, e.Stock[1].Held = 1, -1 }, StockKept, "", "-1 held"},
		{"reserved twice", func(e *Evidence) { e.Stock[0].Reserved, e.Stock[0].Available = 4, 95 }, StockKept, "", "2 of widget reserved"},
		{"SKU gone", func(e *Evidence) { e.Stock = e.Stock[1:] }, StockKept, "", "2 of widget reserved, as in the confirmed orders, found no such SKU"},
		{"held SKU gone", func(e *Evidence) { e.Stock = e.Stock[1:] }, StockKept, "", "1 of widget held, as in the reservations, found no such SKU"},
		{"not settled", func(e *Evidence) { e.Reservations[0].Status = "reserved" }, StockKept, "good", "reservation reserved"},
		{"no reservation", func(e *Evidence) { e.Reservations = e.Reservations[1:] }, StockKept, "good", "reservation none"},
		{"settled for a cancelled order", func(e *Evidence) { e.Reservations[1].Status = "settled" }, StockKept, "empty", "nothing settled"},
		{"settled for nobody", func(e *Evidence) { e.reserve("who", "settled", 1) }, StockKept, "who", "exist"},
		{"other items settled", func(e *Evidence) { e.Reservations[0].Items[0].Quantity = 3 }, StockKept, "good", "{widget 3}"},
		{"held for a cancelled order", func(e *Evidence) { e.reserve("poor", "reserved", 1) }, StockKept, "poor", "nothing held for the cancelled order"},
		{"held twice", func(e *Evidence) { e.Stock[0].Held, e.Stock[0].Available = 2, 96 }, StockKept, "", "1 of widget held, as in the reservations, found 2"},
		{"more held than ordered", func(e *Evidence) { e.Reservations[4].Items[0].Quantity = 2 }, StockKept, "stuck", "{widget 2}"},
		{"held and given away", func(e *Evidence) { e.Stock[0].Held, e.Stock[0].Available = 0, 98 }, StockKept, "", "1 of widget held, as in the reservations, found 0"},
		{"held for nobody", func(e *Evidence) { e.reserve("who", "reserved", 1) }, StockKept, "who", "exist"},

		{"handled out of order", func(e *Evidence) { swap(e, "inventory", 0, 4) }, Sequence, "good", "payment.captured.v1 handled by inventory before order.confirmed.v1"},
		{"handled out of order by payment", func(e *Evidence) { swap(e, "payment", 1, 2) }, Sequence, "empty", "order.placed.v1 handled by payment before inventory.rejected.v1"},
		{"sent again and handled too early", func(e *Evidence) {
			swap(e, "payment", 1, 2)
			e.resend("payment", "empty-"+rejected)
		}, Sequence, "empty", "order.placed.v1 handled by payment before inventory.rejected.v1"},
		{"handled twice", func(e *Evidence) { swap(e, "inventory", 0, 0) }, Sequence, "good", "one end of payment.captured.v1"},
		{"replayed and handled twice", func(e *Evidence) {
			swap(e, "inventory", 0, 0)
			e.resend("inventory", "good-"+captured)
		}, Sequence, "good", "one end of payment.captured.v1"},
		{"step applied twice", func(e *Evidence) {
			again := *e.eventOf("good", captured)
			again.ID, again.EventKey = "other", "other"
			e.Events["good"] = append(e.Events["good"], again)
		}, Path, "good", "2: ids good-payment.captured.v1, other"},
		{"two ends", func(e *Evidence) {
			e.Events["good"] = append(e.Events["good"], Event{EventKey: "x", ID: "x", Source: "/order", Type: cancelled, Causation: "good-" + reserved})
		}, Path, "good", "one final event"},
		{"end that does not fit", func(e *Evidence) { e.Orders[1].Status = "confirmed" }, Path, "poor", confirmed},
		{"end missing", func(e *Evidence) { e.remove("good", confirmed) }, Path, "good", "no final event"},
		{"order does not know of its end", func(e *Evidence) { e.Orders[0].Status = "paid" }, Path, "good", "status paid"},
		{"undeclared type", func(e *Evidence) { e.eventOf("good", reserved).Type = "stock.moved.v1" }, Path, "good", "stock.moved.v1"},
		{"wrong cause", func(e *Evidence) { e.eventOf("good", reserved).Causation = "good-" + placed }, Path, "good", "caused by order.placed.v1"},
		{"deadline without an order", func(e *Evidence) { e.eventOf("late", deadline).Causation = "" }, Causation, "late", "the event that caused order.deadline.v1"},
		{"cancelled for no reason", func(e *Evidence) { e.eventOf("late", cancelRequested).Causation = "late-" + placed }, Path, "late", "caused by order.placed.v1"},
		{"a deadline excuses nothing", func(e *Evidence) {
			e.remove("empty", refunded)
			e.Events["empty"] = append(e.Events["empty"], Event{EventKey: "z", ID: "z", Source: "/order", Type: deadline, Causation: "empty-" + placed})
		}, FollowUp, "empty", "to follow inventory.rejected.v1"},
		{"cause missing", func(e *Evidence) { e.remove("empty", captured) }, Causation, "empty", "empty-payment.captured.v1"},
		{"event lost", func(e *Evidence) { e.remove("poor", cancelled) }, FollowUp, "poor", "to follow payment.declined.v1"},
		{"two things follow", func(e *Evidence) {
			e.Events["good"] = append(e.Events["good"], Event{EventKey: "y", ID: "y", Source: "/inventory", Type: rejected, Causation: "good-" + captured})
		}, FollowUp, "good", "inventory.reserved.v1, inventory.rejected.v1"},

		{"row left pending", func(e *Evidence) { e.Outbox[1].Status = "PENDING" }, Outbox, "good", "PENDING"},
		{"row left in somebody's hands", func(e *Evidence) { e.Outbox[1].Status = "PROCESSING" }, Outbox, "good", "PROCESSING"},
		{"published row not in the stream", func(e *Evidence) { e.Outbox[1].MessageID = "other" }, Outbox, "good", "row 2 on events.order.confirmed.v1.good in the stream"},
		{"row doubled", func(e *Evidence) { e.outbox("good", placed) }, Outbox, "good", "rows 1 and 9"},
		{"row parked for no reason", func(e *Evidence) { e.Outbox[7].Attempts = 0 }, Outbox, "unsent", "why row 10"},
		{"unsent row gone", func(e *Evidence) { e.Outbox = e.Outbox[:7] }, Stored, "unsent", "none"},
		{"event dropped half-way", func(e *Evidence) { e.Inbox[0].State = "waiting" }, Inbox, "", "good-" + captured},
		{"claim left behind", func(e *Evidence) { e.Inbox[0].State = "claimed" }, Inbox, "", "claimed"},
		{"parked without a letter", func(e *Evidence) { e.Letters = e.Letters[:3] }, Inbox, "", "which order has parked"},

		{"breaker's event of somebody else", func(e *Evidence) { e.Changes[0].Source = "/mallory" }, Breaker, "", "the source /payment of breaker.closed.v1"},
		{"breaker's event of another breaker", func(e *Evidence) { e.Changes[0].Breaker = "bank" }, Breaker, "", `breaker "bank"`},
		{"breaker's event under another key", func(e *Evidence) { e.Changes[0].Key, e.Changes[0].ID = "x", "x-1-7" }, Breaker, "", "the key payment-gateway"},
		{"breaker's event of another type", func(e *Evidence) { e.Changes[0].Type = "breaker.broken.v1" }, Breaker, "", "breaker.broken.v1"},
		{"breaker's event with another id", func(e *Evidence) { e.Changes[0].ID = "x-7" }, Breaker, "", "payment-gateway-1-7, found x-7"},
		{"breaker's event without a term", func(e *Evidence) { e.Changes[0].ID = "payment-gateway-1-" }, Breaker, "", "an id made of key"},
		{"breaker's event that cannot be read", func(e *Evidence) { e.Changes[0].Problem = "no JSON" }, Breaker, "", "no JSON"},
		{"breaker changed by nobody", func(e *Evidence) { e.Changes[0].By = "" }, Breaker, "", "who has changed"},
		{"breaker open for ever", func(e *Evidence) { e.Changes[1].Until = time.Time{} }, Breaker, "", "payment-gateway-1-2"},
		{"breaker closed for a time", func(e *Evidence) { e.Changes[0].Until = moment(9) }, Breaker, "", "none of a closed one"},
		{"breaker changed twice at once", func(e *Evidence) {
			e.Changes[2].Opened, e.Changes[2].ID = 2, "payment-gateway-2-2"
		}, Breaker, "", "a change that follows payment-gateway-1-2"},
		{"opening forgotten", func(e *Evidence) {
			e.Changes[0].Opened, e.Changes[0].ID = 0, "payment-gateway-0-7"
		}, Breaker, "", "a change that follows payment-gateway-1-6"},
		{"attempt while an operator has the breaker open", func(e *Evidence) {
			e.Changes[1].Until, e.Changes[1].Forced = time.Time{}, true
			e.fail("good", 2, "error")
		}, Attempts, "good", "not closed"},
		{"breaker's event of a process alone, with another's id", func(e *Evidence) {
			e.Changes[1].ID = "payment-gateway-1-2 host 2"
		}, Breaker, "", "payment-gateway-1-2 host 1, found payment-gateway-1-2 host 2"},
		{"attempt while open", func(e *Evidence) { e.fail("good", 2, "error") }, Attempts, "good", "gateway: 503"},
		{"attempt while half-open", func(e *Evidence) { e.fail("good", 3, "error") }, Attempts, "good", "not closed"},
		{"attempt while open again", func(e *Evidence) { e.fail("good", 4, "error") }, Attempts, "good", "not closed"},
		{"attempt while open, nothing known of the end", func(e *Evidence) {
			e.Changes = e.Changes[1:2]
			e.fail("good", 2, "error")
		}, Attempts, "good", "not closed"},
		{"letter because of the outage", func(e *Evidence) { e.Letters[0].Class = "resilience.statusError" }, Outage, "stuck", "exhausted"},
		{"letter because of the outage, replayed", func(e *Evidence) {
			e.Former = []Letter{{"payment.x", "payment", "exhausted", "good-" + placed, "good", "error"}}
		}, Outage, "good", "payment.x"},

		{"garbage swallowed", func(e *Evidence) {
			e.Letters = slices.DeleteFunc(e.Letters, func(l Letter) bool { return l.EventKey == "garbage" })
		}, Accounting, "", "undecodable message 99"},
		{"forged event swallowed", func(e *Evidence) { e.Letters = slices.Delete(e.Letters, 2, 3) }, Accounting, "nobody", "forged"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := sound()
			tt.breakIt(&e)
			got := Check(e)
			named := slices.ContainsFunc(got, func(v Violation) bool {
				return v.Invariant == tt.invariant && v.Order == tt.order && strings.Contains(v.String(), tt.says)
			})
			if !named {
				t.Errorf("want %s of order %q saying %q, got %v", tt.invariant, tt.order, tt.says, got)
			}
		})
	}
}

// A process that has its breaker for itself tells of it, and the others go on.
func TestCheck_suffers_a_breaker_of_one_process(t *testing.T) {
	t.Parallel()
	e := sound()
	for i := range e.Changes {
		e.Changes[i].ID += " host 1"
	}
	e.fail("good", 2, "error")
	if got := Check(e); len(got) != 0 {
		t.Errorf("violations: %v", got)
	}
}

// With few calls a breaker opens late, and an event can have spent all its attempts by then.
func TestLetterOfBeforeTheOpeningIsNotBecauseOfTheOutage(t *testing.T) {
	t.Parallel()
	e := sound()
	e.Letters[0].Class = "resilience.statusError"
	e.Attempts = slices.DeleteFunc(e.Attempts, func(a Attempt) bool { return a.EventKey == e.Letters[0].EventKey })
	e.fail(e.Letters[0].Order, 0, "resilience.statusError")
	if v := Check(e); len(v) > 0 {
		t.Errorf("%v", v)
	}
}

func TestJudge_counts_what_an_outage_costs(t *testing.T) {
	t.Parallel()
	e := sound()
	if got, want := Judge(e).Outages, (Outages{Opened: 1, NotClosedMS: 20_000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	e.fail("good", 2, "error")
	e.Letters[0].Class = "error"
	if got, want := Judge(e).Outages, (Outages{Opened: 1, NotClosedMS: 20_000, Attempts: 1, DeadLetters: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
