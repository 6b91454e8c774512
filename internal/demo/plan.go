package demo

import (
	"fmt"
	"math/rand/v2"
)

// kind is what an order is made to go through. Which path it takes to its end
// follows from the kind alone, so the outcome of a run is a function of its seed.
type kind int

const (
	plain    kind = iota // everything goes well
	declined             // the gateway declines: cancelled
	flaky                // the gateway fails twice, then works
	slow                 // the gateway takes two seconds
	unicorn              // out of stock: refunded and cancelled
	poison               // the payment handler panics until the fault is off; confirmed after replay
	regret               // poison, and the customer cancels meanwhile: cancelled, the replay changes nothing
)

// customers are the known prefixes of customer ids that make a kind happen; the
// others' need none.
var customers = map[kind]string{
	declined: "decline-", flaky: "flaky-", slow: "slow-", poison: "poison-", regret: "poison-",
}

// share says how many of 1,000 orders are of a kind, beside plain ones, and
// how many at most.
type share struct {
	kind     kind
	perMille int
	most     int
}

// shares of each amount of trouble. Declines and empty shelves are business,
// not trouble: they happen in every run.
var shares = map[Faults][]share{
	None: {{declined, 80, 0}, {unicorn, 50, 0}},
	Some: {{declined, 80, 0}, {unicorn, 50, 0}, {flaky, 50, 0}, {slow, 10, 4}, {poison, 20, 20}, {regret, 10, 10}},
	Storm: {
		{declined, 80, 0}, {unicorn, 50, 0}, {flaky, 150, 0}, {slow, 20, 8}, {poison, 40, 40}, {regret, 20, 20},
	},
}

// line is one item of an order.
type line struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// purchase is one order to be placed.
type purchase struct {
	kind     kind
	key      string // Idempotency-Key
	customer string
	items    []line
}

// confirmed says how the order must end.
func (o purchase) confirmed() bool {
	switch o.kind {
	case plain, flaky, slow, poison:
		return true
	default:
		return false
	}
}

// catalogue is what is plentiful.
var catalogue = [...]string{"widget", "gadget", "anvil"}

// plan draws n orders from the seed. There is at least one of each kind that
// has a share, when n allows it.
func plan(n int, seed uint64, faults Faults) []purchase {
	random := rand.New(rand.NewPCG(seed, 0x0fa2a4d01e)) //nolint:gosec // reproducible on purpose
	orders := make([]purchase, n)
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
		o.customer = fmt.Sprintf("%scustomer-%d", customers[o.kind], i)
		for _, at := range random.Perm(len(catalogue))[:1+random.IntN(len(catalogue))] {
			o.items = append(o.items, line{catalogue[at], 1 + random.IntN(3)})
		}
		if o.kind == unicorn {
			o.items = append(o.items, line{"unicorn", 1})
		}
	}
	return orders
}
