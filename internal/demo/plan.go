package demo

import (
	"fmt"
	"math/rand/v2"
)

// kind is what happens to an order. How the order ends depends on its kind alone, so
// the outcome of a run depends on its seed alone.
type kind int

const (
	plain    kind = iota // nothing goes wrong: confirmed
	declined             // the gateway declines: cancelled
	flaky                // the gateway fails twice, then works: confirmed
	slow                 // the gateway takes two seconds: confirmed
	unicorn              // out of stock: refunded and cancelled
	poison               // the payment handler panics until the fault is off; confirmed after replay
	regret               // poison, and the customer cancels meanwhile: cancelled, the replay changes nothing
)

// customerPrefixes are the prefixes of customer ids to which the services react
// (docs/contract.md, "Known inputs"). The other kinds need none.
var customerPrefixes = map[kind]string{
	declined: "decline-", flaky: "flaky-", slow: "slow-", poison: "poison-", regret: "poison-",
}

// share says how many of 1,000 orders are of a kind. The rest are plain.
type share struct {
	kind     kind
	perMille int
	most     int // in one run; 0 for any number
}

// shares of each value of Faults. Declined orders and missing stock are ordinary
// business, not faults: they happen in every run.
var shares = map[Faults][]share{
	None:   {{declined, 80, 0}, {unicorn, 50, 0}},
	Outage: {{declined, 80, 0}, {unicorn, 50, 0}},
	Some:   {{declined, 80, 0}, {unicorn, 50, 0}, {flaky, 50, 0}, {slow, 10, 4}, {poison, 20, 20}, {regret, 10, 10}},
	Storm: {
		{declined, 80, 0}, {unicorn, 50, 0}, {flaky, 150, 0}, {slow, 20, 8}, {poison, 40, 40}, {regret, 20, 20},
	},
}

// line is one item of an order.
type line struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// plannedOrder is an order to be placed.
type plannedOrder struct {
	kind     kind
	key      string // Idempotency-Key
	customer string
	items    []line
}

// confirmed says how the order must end.
func (o plannedOrder) confirmed() bool {
	switch o.kind {
	case plain, flaky, slow, poison:
		return true
	default:
		return false
	}
}

// catalogue holds the SKUs that are always in stock.
var catalogue = [...]string{"widget", "gadget", "anvil"}

// plan makes n random orders from the seed. At least one is of each kind that has a
// share, if n is large enough.
func plan(n int, seed uint64, faults Faults) []plannedOrder {
	random := rand.New(rand.NewPCG(seed, 0x0fa2a4d01e)) //nolint:gosec // reproducible on purpose
	orders := make([]plannedOrder, n)
	next := 0
	for _, s := range shares[faults] {
		count := max(1, n*s.perMille/1000)
		if s.most > 0 {
			count = min(count, s.most)
		}
		for range min(count, n-next) {
			orders[next].kind = s.kind
			next++
		}
	}
	random.Shuffle(n, func(i, j int) { orders[i], orders[j] = orders[j], orders[i] })
	for i := range orders {
		o := &orders[i]
		o.key = fmt.Sprintf("demo-%d-%d", seed, i)
		o.customer = fmt.Sprintf("%scustomer-%d", customerPrefixes[o.kind], i)
		for _, at := range random.Perm(len(catalogue))[:1+random.IntN(len(catalogue))] {
			o.items = append(o.items, line{catalogue[at], 1 + random.IntN(3)})
		}
		if o.kind == unicorn {
			o.items = append(o.items, line{"unicorn", 1})
		}
	}
	return orders
}
