package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/farandole/farandole/internal/backoff"
)

const (
	maxBody = 64 << 10 // bytes of a request's body
	maxText = 512      // bytes of a key or an id
)

// problemVoided is the type of the problem document that answers a charge under a
// voided key.
const problemVoided = "urn:farandole:gateway:voided"

// Handler serves the merchants' part of the interface; see the package comment.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", g.postCharge)
	mux.HandleFunc("POST /voids", g.postVoid)
	return mux
}

// Admin serves the operators' part of the interface; see the package comment.
func (g *Gateway) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /books", g.getBooks)
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, g.Faults()) })
	mux.HandleFunc("PUT /faults", g.putFaults)
	return mux
}

// chargeAnswer is the answer to POST /charges.
type chargeAnswer struct {
	ChargeID string `json:"charge_id,omitempty"`
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
	Reason   string `json:"reason,omitempty"`
}

func (g *Gateway) postCharge(w http.ResponseWriter, r *http.Request) {
	var body chargeRequest
	key, ok := read(w, r, &body)
	if !ok {
		return
	}
	if err := body.validate(); err != nil {
		refuse(w, http.StatusBadRequest, "", "invalid charge", err.Error())
		return
	}
	g.serve(w, r, key, body.CustomerID, func() (int, any, bool, error) {
		a, replayed, err := g.charge(key, body)
		out := chargeAnswer{ChargeID: a.ChargeID, OrderID: a.OrderID, Amount: a.Amount, Currency: a.Currency, Status: "captured"}
		if a.ChargeID == "" {
			out.Status, out.Reason = "declined", a.Reason
			return http.StatusPaymentRequired, out, replayed, err
		}
		return http.StatusCreated, out, replayed, err
	})
}

// voidAnswer is the answer to POST /voids.
type voidAnswer struct {
	RefundID string `json:"refund_id"`
	ChargeID string `json:"charge_id"`
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"` // refunded
	Currency string `json:"currency"`
}

func (g *Gateway) postVoid(w http.ResponseWriter, r *http.Request) {
	var body voidRequest
	key, ok := read(w, r, &body)
	if !ok {
		return
	}
	if !isText(body.ChargeKey) || !isText(body.OrderID) {
		refuse(w, http.StatusBadRequest, "", "invalid void", fmt.Sprintf("charge_key and order_id: want 1 to %d bytes", maxText))
		return
	}
	g.serve(w, r, key, "", func() (int, any, bool, error) {
		a, replayed, err := g.void(key, body)
		out := voidAnswer{RefundID: a.RefundID, ChargeID: a.ChargeID, OrderID: a.OrderID, Amount: a.Refunded}
		if a.ChargeID != "" {
			out.Currency = a.Currency
		}
		return http.StatusCreated, out, replayed, err
	})
}

// serve carries out one try: it injects the fault, changes the books, waits for the
// delay and answers. The books are changed also if the client has gone.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, key, customer string, do func() (status int, body any, replayed bool, err error)) {
	injected := g.faults.try(key, customer)
	switch injected {
	case faultError:
		refuse(w, http.StatusInternalServerError, "", "internal error", "injected; nothing was done")
		return
	case faultUnavailable:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "", "unavailable", "injected; nothing was done")
		return
	case noFault, faultAnswerLost:
	}
	status, body, replayed, err := do()
	if err != nil {
		g.refuseError(w, err)
		return
	}
	// Only the first answer is delayed. A client whose timeout is shorter than the
	// delay gets its answer at the next try.
	if delay := g.faults.delay(customer); delay > 0 && !replayed {
		if !backoff.Wait(r.Context(), delay) {
			return
		}
	}
	if injected == faultAnswerLost {
		panic(http.ErrAbortHandler) // closes the connection, without a log line
	}
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	answer(w, status, body)
}

func (g *Gateway) refuseError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errVoided):
		refuse(w, http.StatusConflict, problemVoided, "voided", "the key was voided; nothing is charged under it any more")
	case errors.Is(err, errKeyReused):
		refuse(w, http.StatusUnprocessableEntity, "", "idempotency key reused", err.Error())
	default:
		g.log.Error().Err(err).Msg("books cannot be written")
		refuse(w, http.StatusInternalServerError, "", "books cannot be written", "whether it was done is not known; try again with the same key")
	}
}

// bookedCharge is one charge in GET /books.
type bookedCharge struct {
	ChargeID   string `json:"charge_id"`
	OrderID    string `json:"order_id"`
	CustomerID string `json:"customer_id"`
	Amount     int64  `json:"amount"`
	Currency   string `json:"currency"`
	Refunded   int64  `json:"refunded"`
	Status     string `json:"status"` // captured or refunded
}

func (g *Gateway) getBooks(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string][]bookedCharge{"charges": g.charges()})
}

// charges returns all charges that were ever made, oldest first.
func (g *Gateway) charges() []bookedCharge {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]bookedCharge, 0, len(g.books.charges))
	for _, a := range g.books.charges {
		c := bookedCharge{
			ChargeID: a.ChargeID, OrderID: a.OrderID, CustomerID: a.CustomerID,
			Amount: a.Amount, Currency: a.Currency, Refunded: a.Refunded, Status: "captured",
		}
		if a.Voided {
			c.Status = "refunded"
		}
		all = append(all, c)
	}
	return all
}

func (g *Gateway) putFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	if !decode(w, r, &f) {
		return
	}
	if err := g.SetFaults(f); err != nil {
		refuse(w, http.StatusBadRequest, "", "invalid faults", err.Error())
		return
	}
	answer(w, http.StatusOK, g.Faults())
}

func (c chargeRequest) validate() error {
	if !isText(c.OrderID) || !isText(c.CustomerID) {
		return fmt.Errorf("order_id and customer_id: want 1 to %d bytes", maxText)
	}
	if c.Amount < 0 {
		return fmt.Errorf("amount %d is negative", c.Amount)
	}
	if len(c.Currency) != 3 {
		return fmt.Errorf("currency %q: want three letters", c.Currency)
	}
	return nil
}

func isText(s string) bool { return s != "" && len(s) <= maxText }

// read reads the idempotency key and the body. If one of them is wrong it answers
// with a problem document, and ok is false.
func read(w http.ResponseWriter, r *http.Request, body any) (key string, ok bool) {
	key = r.Header.Get("Idempotency-Key")
	if !isText(key) {
		refuse(w, http.StatusBadRequest, "", "idempotency key missing", fmt.Sprintf("Idempotency-Key: want 1 to %d bytes", maxText))
		return "", false
	}
	return key, decode(w, r, body)
}

// decode reads the body, one JSON document. If it is wrong it answers with a problem
// document and returns false.
func decode(w http.ResponseWriter, r *http.Request, body any) bool {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, "", "body too large", fmt.Sprintf("want at most %d bytes", maxBody))
		return false
	case err != nil:
		refuse(w, http.StatusBadRequest, "", "body cannot be read", err.Error())
		return false
	}
	if err := json.Unmarshal(data, body); err != nil {
		refuse(w, http.StatusBadRequest, "", "body is not the JSON document it should be", "its members and their types are in the gateway's documentation")
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a client that has gone cannot be told
}

// refuse answers with a problem document (RFC 9457); an empty kind is "about:blank".
func refuse(w http.ResponseWriter, status int, kind, title, detail string) {
	if kind == "" {
		kind = "about:blank"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	p := map[string]any{"type": kind, "title": title, "status": status, "detail": detail}
	json.NewEncoder(w).Encode(p) //nolint:errcheck // likewise
}
