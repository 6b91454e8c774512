package order

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farandole/farandole/internal/web"
)

// How many orders are on a page of a list.
const (
	defaultLimit = 50
	maxLimit     = 200
)

// page is the answer to GET /orders.
type page struct {
	Orders []view `json:"orders"` // newest first
	// Next is the cursor of the next page; absent on the last one.
	Next string `json:"next,omitempty"`
}

// getOrders lists orders, newest first. A page begins after the last order of the
// page before it. So orders that are placed meanwhile make no order appear twice
// or not at all.
func (s *Service) getOrders(w http.ResponseWriter, r *http.Request) {
	wanted, p := readSelection(r.URL.RawQuery)
	if p != nil {
		p.Write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	found, err := s.page(ctx, wanted)
	if err != nil {
		s.fail(w, err)
		return
	}
	if found.Next != "" {
		query := r.URL.Query()
		query.Set("cursor", found.Next)
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, r.URL.EscapedPath(), query.Encode()))
	}
	web.WriteJSON(w, http.StatusOK, found)
}

func (s *Service) page(ctx context.Context, wanted selection) (page, error) {
	if err := s.open(); err != nil {
		return page{}, err
	}
	limit := wanted.limit
	wanted.limit++ // to see whether there is another page
	orders, err := s.table.list(ctx, s.db.DB, wanted)
	if err != nil {
		return page{}, err
	}
	found := page{Orders: []view{}} // [] in JSON, not null
	if len(orders) > limit {
		orders = orders[:limit]
		last := orders[limit-1]
		found.Next = position{last.Created, last.ID}.cursor()
	}
	for _, o := range orders {
		found.Orders = append(found.Orders, viewOf(o))
	}
	return found, nil
}

// readSelection reads the query of a list. If it is wrong, the problem document
// says why.
func readSelection(query string) (selection, *web.Problem) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return selection{}, web.NewProblem(http.StatusBadRequest, "invalid-query", "The query cannot be read: a percent sign is not followed by two hex digits, or there is a semicolon.")
	}
	s := selection{limit: defaultLimit}
	var errs []web.Fault
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if wrong := s.set(name, values[name]); wrong != "" {
			errs = append(errs, web.Fault{Parameter: name, Detail: wrong})
		}
	}
	if len(errs) > 0 {
		return selection{}, badQuery(errs)
	}
	return s, nil
}

// set takes over one parameter. wrong says what is wrong with it, "" for nothing.
func (s *selection) set(name string, values []string) (wrong string) {
	value := values[0]
	switch name {
	case "limit":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxLimit {
			return fmt.Sprintf("must be 1 to %d", maxLimit)
		}
		s.limit = n
	case "cursor":
		at, ok := parseCursor(value)
		if !ok {
			return "must be one that an earlier answer gave as next"
		}
		s.after = &at
	case "status":
		if !slices.Contains(statuses[:], Status(value)) {
			return "must be placed, paid, cancelling, confirmed or cancelled"
		}
		s.status = Status(value)
	case "customer_id":
		if !validCustomer(value) {
			return customerRule
		}
		s.customer = value
	default:
		return "is unknown: there are limit, cursor, status and customer_id"
	}
	if len(values) > 1 {
		return "is repeated"
	}
	return ""
}

// cursor is the position as a client gets it and sends it back.
func (p position) cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.created.UnixMilli(), p.id))
}

func parseCursor(cursor string) (position, bool) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return position{}, false
	}
	at, id, _ := strings.Cut(string(text), " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || ms < 0 || ms > lastMilli || id == "" || !storable(id) {
		return position{}, false
	}
	return position{time.UnixMilli(ms).UTC(), id}, true
}

// lastMilli is the end of the year 9999: JSON cannot hold a later time.
const lastMilli = 253402300799999
