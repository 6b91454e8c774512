package order

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/internal/web"
	"github.com/farandole/farandole/services/events"
)

const (
	// requestTimeout bounds what one request waits for the database.
	requestTimeout = 10 * time.Second
	// placeTimeout is the same for one that places an order. It is short: if the process
	// dies meanwhile, so long the same request is told that one is under way.
	placeTimeout = roomPatience + 2*time.Second
)

// accepted is the answer to POST /orders and POST /orders/{id}/cancel. Status is
// the one that the request led to, so a repeated request gets the same answer.
type accepted struct {
	OrderID string `json:"order_id"`
	Status  Status `json:"status"`
}

// view is the answer to GET /orders/{id}, and an element of a list.
type view struct {
	OrderID    string        `json:"order_id"`
	Status     Status        `json:"status"`
	CustomerID string        `json:"customer_id"`
	Currency   string        `json:"currency"`
	Total      int64         `json:"total"` // minor units
	Items      []events.Item `json:"items"`
	Reason     string        `json:"reason,omitempty"`
	Created    time.Time     `json:"created"` // when it was placed
	Updated    time.Time     `json:"updated"` // when the status last changed
}

func viewOf(o Order) view {
	return view{o.ID, o.Status, o.CustomerID, o.Currency, o.Total, o.Items, o.Reason, o.Created, o.Updated}
}

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	mux.HandleFunc("GET /orders", s.getOrders)
	mux.HandleFunc("GET /orders/{id}", s.getOrder)
	mux.HandleFunc("POST /orders/{id}/cancel", s.postCancel)
	return web.Problems(mux)
}

func (s *Service) postOrder(w http.ResponseWriter, r *http.Request) {
	o, p := readOrder(w, r)
	if p != nil {
		p.Write(w)
		return
	}
	// A request that is refused until here may be mended and sent under the same key.
	s.once(http.HandlerFunc(s.placeOrder)).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), orderKey{}, o)))
}

type orderKey struct{}

// orderOf is the order that a request asks for, without an id.
func orderOf(r *http.Request) Order {
	o, _ := r.Context().Value(orderKey{}).(Order)
	return o
}

// placeOrder may run again for a request whose answer was not stored: the order's id is
// the request's.
func (s *Service) placeOrder(w http.ResponseWriter, r *http.Request) {
	o := orderOf(r)
	o.Request = idempotency.ID(r.Context())
	o.ID, o.Status = orderID(o.Request), Placed
	if err := s.place(r.Context(), o); err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Location", "/orders/"+o.ID)
	web.WriteJSON(w, http.StatusAccepted, accepted{OrderID: o.ID, Status: Placed})
}

func (s *Service) getOrder(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	o, err := s.order(ctx, r.PathValue("id"))
	if err != nil {
		s.fail(w, err)
		return
	}
	web.WriteJSON(w, http.StatusOK, viewOf(o))
}

// order returns an order. The error matches errNotFound if there is none.
func (s *Service) order(ctx context.Context, id string) (Order, error) {
	if err := s.open(); err != nil {
		return Order{}, err
	}
	o, err := s.table.get(ctx, s.db.DB, id)
	if err == nil && o.Status == "" {
		err = errNotFound
	}
	return o, err
}

func (s *Service) postCancel(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	id := r.PathValue("id")
	if err := s.cancel(ctx, id); err != nil {
		s.fail(w, err)
		return
	}
	web.WriteJSON(w, http.StatusAccepted, accepted{OrderID: id, Status: Cancelling})
}

// fail answers with the problem document of an error. It does not log mistakes of
// the client.
func (s *Service) fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errNotFound):
		web.NewProblem(http.StatusNotFound, "not-found", "There is no such order.").Write(w)
	case errors.Is(err, errFull):
		web.NewProblem(http.StatusServiceUnavailable, "busy", "As many orders are under way as can be finished soon. Send the same request again.").Write(w)
	case errors.Is(err, errFinal):
		web.NewProblem(http.StatusConflict, "final", "The order is confirmed or cancelled already.").Write(w)
	case errors.Is(err, errUnreadable):
		s.log.Error().Err(err).Msg("order is unreadable")
		web.NewProblem(http.StatusInternalServerError, "internal", "The record of an order is unreadable.").Write(w)
	default:
		s.log.Warn().Err(err).Msg("request not carried out")
		unavailable("The order service cannot reach its database now. Send the same request again.").Write(w)
	}
}
