package order

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/internal/web"
	"github.com/farandole/farandole/outbox"
)

// fill adds orders by hand, of three customers and all statuses, seven of them
// in each millisecond, and all of them before their deadline.
func (s *system) fill(from, n int) {
	s.tb.Helper()
	t := table{s.db.Dialect}
	const columns, most = 11, 40 // SQLite's driver takes time as the square of it
	for to := from + n; from < to; from += most {
		var values []string
		var args []any
		for i := from; i < min(from+most, to); i++ {
			at := t.time(time.UnixMilli(4_000_000_000_000 + int64(i/7)).UTC())
			var marks []string
			for c := range columns {
				marks = append(marks, fmt.Sprintf("$%d", len(args)+c+1))
			}
			values = append(values, "("+strings.Join(marks, ",")+")")
			args = append(args, idOf(fmt.Sprint("fill-", i)), string(statuses[i%len(statuses)]), "", fmt.Sprint("customer-", i%3),
				"EUR", i, `[{"sku":"widget","quantity":2}]`, "request", "instance", at, at)
		}
		s.exec(`INSERT INTO orders (order_id, status, reason, customer_id, currency, total, items, request, instance, created_at, updated_at)
			VALUES `+strings.Join(values, ","), args...)
	}
}

// walk follows the links from a path to the last page and returns all orders.
// between is called after each page.
func (p *process) walk(path string, between func()) (all []view) {
	p.s.tb.Helper()
	for {
		a := p.call(http.MethodGet, path, nil, "")
		if a.status != http.StatusOK {
			p.s.tb.Fatalf("GET %s: %d %s", path, a.status, a.body)
		}
		found := parse[page](p.s.tb, a.body)
		all = append(all, found.Orders...)
		link := a.header.Get("Link")
		if found.Next == "" {
			if link != "" || strings.Contains(a.body, "next") {
				p.s.tb.Errorf("last page has a next: %q %s", link, a.body)
			}
			return all
		}
		next, ok := strings.CutSuffix(link, `>; rel="next"`)
		if !ok || !strings.Contains(next, "cursor="+url.QueryEscape(found.Next)) {
			p.s.tb.Fatalf("Link %q, next %q", link, found.Next)
		}
		path = strings.TrimPrefix(next, "<")
		between()
	}
}

// Every order is on one page, newest first, whatever is placed meanwhile.
func TestListIsStableUnderInserts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		const there = 5000
		p := s.start(config())
		s.fill(0, there)
		added := there
		seen := map[string]int{}
		all := p.walk("/orders?limit=199", func() {
			s.fill(added, 10)
			added += 10
		})
		if !slices.IsSortedFunc(all, func(a, b view) int { return b.Created.Compare(a.Created) }) {
			t.Error("not newest first")
		}
		for _, v := range all {
			seen[v.OrderID]++
		}
		for i := range there {
			if id := idOf(fmt.Sprint("fill-", i)); seen[id] != 1 {
				t.Fatalf("order %d is there %d times", i, seen[id])
			}
		}
		if len(all) != there {
			t.Errorf("%d orders, want those that were there in the beginning, %d", len(all), there)
		}
		if added == there {
			t.Error("one page")
		}
	})
}

func TestListSelects(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		if a := p.call(http.MethodGet, "/orders", nil, ""); a.status != http.StatusOK || a.body != `{"orders":[]}`+"\n" {
			t.Errorf("none: %d %s", a.status, a.body)
		}
		const there = 1500
		s.fill(0, there)
		for path, keep := range map[string]func(i int) bool{
			"/orders?limit=200":                                    func(int) bool { return true },
			"/orders?limit=200&status=paid":                        func(i int) bool { return statuses[i%5] == Paid },
			"/orders?limit=1&customer_id=nobody":                   func(int) bool { return false },
			"/orders?customer_id=customer-1":                       func(i int) bool { return i%3 == 1 },
			"/orders?status=placed&limit=7&customer_id=customer-2": func(i int) bool { return i%3 == 2 && statuses[i%5] == Placed },
		} {
			want := map[string]bool{}
			for i := range there {
				if keep(i) {
					want[idOf(fmt.Sprint("fill-", i))] = true
				}
			}
			got := map[string]bool{}
			for _, v := range p.walk(path, func() {}) {
				got[v.OrderID] = true
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: %d orders, want %d", path, len(got), len(want))
			}
		}
		if n := len(parse[page](t, p.call(http.MethodGet, "/orders", nil, "").body).Orders); n != 50 {
			t.Errorf("a page has %d orders, want 50", n)
		}
		// An order in a list is what it is by itself.
		first := parse[page](t, p.call(http.MethodGet, "/orders?limit=1", nil, "").body).Orders[0]
		if alone := parse[view](t, p.call(http.MethodGet, "/orders/"+first.OrderID, nil, "").body); fmt.Sprint(alone) != fmt.Sprint(first) {
			t.Errorf("%v in the list, %v alone", first, alone)
		}
	})
}

func TestListShowsWhatIsPlaced(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		placeAll(t, 20, p)
		if all := p.walk("/orders?limit=3&customer_id=alice", func() {}); len(all) != 20 {
			t.Errorf("%d orders, want 20", len(all))
		}
	})
}

// What is wrong with a query is said in words and by parameter.
func TestListRefuses(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		p := s.start(config())
		cursor := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
		for query, wrong := range map[string][]string{
			"limit=0":                     {"limit"},
			"limit=201":                   {"limit"},
			"limit=-1":                    {"limit"},
			"limit=ten":                   {"limit"},
			"limit=":                      {"limit"},
			"limit=1&limit=2":             {"limit"},
			"status=lost":                 {"status"},
			"status=":                     {"status"},
			"customer_id=":                {"customer_id"},
			"customer_id=a%00":            {"customer_id"},
			"customer_id=%FF":             {"customer_id"},
			"cursor=":                     {"cursor"},
			"cursor=!":                    {"cursor"},
			"cursor=" + cursor("x"):       {"cursor"},
			"cursor=" + cursor("1 "):      {"cursor"},
			"cursor=" + cursor("1 a\x00"): {"cursor"},
			"cursor=" + cursor("-1 a"):    {"cursor"},
			"cursor=" + cursor("9223372036854775807 a"): {"cursor"},
			"customer=a":           {"customer"},
			"limit=0&status=x&q=1": {"limit", "q", "status"},
			"limit=%zz":            nil,
		} {
			a := p.call(http.MethodGet, "/orders?"+query, nil, "")
			isProblem(t, query, a, http.StatusBadRequest)
			pr := parse[web.Problem](t, a.body)
			var parameters []string
			for _, e := range pr.Errors {
				parameters = append(parameters, e.Parameter)
				if !strings.Contains(pr.Detail, e.Parameter+" "+e.Detail) {
					t.Errorf("%s: the detail does not say what is wrong: %s", query, a.body)
				}
			}
			if !slices.Equal(parameters, wrong) {
				t.Errorf("%s: wrong are %v, want %v", query, parameters, wrong)
			}
		}
		isProblem(t, "method", p.call(http.MethodPut, "/orders", nil, ""), http.StatusMethodNotAllowed)
	})
}

// A page is read from an index, in its order: a later page costs what the first does.
func TestListUsesAnIndex(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *system) {
		t.Helper()
		s.start(config())
		s.fill(0, 3000)
		explain := "EXPLAIN QUERY PLAN "
		if s.db.Dialect == outbox.Postgres {
			explain = "EXPLAIN "
			s.exec("ANALYZE orders")
		}
		after := &position{time.UnixMilli(1_700_000_000_200), "ord-"}
		for index, sel := range map[string]selection{
			"orders_created":  {after: after, limit: 50},
			"orders_customer": {after: after, limit: 50, customer: "customer-1"},
			"orders_status":   {after: after, limit: 50, status: Paid},
		} {
			query, args := table{s.db.Dialect}.listing(sel)
			rows, err := s.db.DB.QueryContext(t.Context(), explain+query, args...)
			if err != nil {
				t.Fatal(err)
			}
			var plan []string
			for rows.Next() {
				columns, err := rows.Columns()
				if err != nil {
					t.Fatal(err)
				}
				values := make([]any, len(columns))
				for i := range values {
					values[i] = new(any)
				}
				if err := rows.Scan(values...); err != nil {
					t.Fatal(err)
				}
				plan = append(plan, fmt.Sprint(*values[len(values)-1].(*any)))
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			if s.db.Dialect == outbox.Postgres {
				index = "using orders_" // it may find another one cheaper for so few customers
			}
			if text := strings.Join(plan, "\n"); !strings.Contains(text, index) || strings.Contains(text, "TEMP B-TREE") || strings.Contains(text, "Sort") {
				t.Errorf("%s is not used in order:\n%s", index, text)
			}
		}
	})
}
