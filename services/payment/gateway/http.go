package gateway

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/farandole/farandole/internal/backoff"
	"github.com/farandole/farandole/internal/web"
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
	return web.Problems(mux)
}

// Admin serves the operators' part of the interface; see the package comment.
func (g *Gateway) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /books", g.getBooks)
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { web.WriteJSON(w, http.StatusOK, g.Faults()) })
	mux.HandleFunc("PUT /faults", g.putFaults)
	return web.Problems(mux)
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
	if faults := body.validate(); faults != nil {
		invalid(w, "charge", faults)
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
	if faults := text(text(nil, "charge_key", body.ChargeKey), "order_id", body.OrderID); faults != nil {
		invalid(w, "void", faults)
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
		refuse(w, http.StatusInternalServerError, "injected-fault", "Nothing was done. This error was asked for.")
		return
	case faultUnavailable:
		refuse(w, http.StatusServiceUnavailable, "injected-fault", "Nothing was done. This error was asked for.")
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
	web.WriteJSON(w, status, body)
}

func (g *Gateway) refuseError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errVoided):
		p := web.NewProblem(http.StatusConflict, "voided", "The key was voided: nothing is charged under it any more.")
		p.Type = problemVoided
		p.Write(w)
	case errors.Is(err, errKeyReused):
		refuse(w, http.StatusUnprocessableEntity, "idempotency-key-reused", "The Idempotency-Key was used for another request.")
	default:
		g.log.Error().Err(err).Msg("books cannot be written")
		refuse(w, http.StatusInternalServerError, "books-unwritable", "Whether it was done is not known. Send the same request again, with the same key.")
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
	web.WriteJSON(w, http.StatusOK, map[string][]bookedCharge{"charges": g.charges()})
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
		refuse(w, http.StatusBadRequest, "invalid-faults", err.Error())
		return
	}
	web.WriteJSON(w, http.StatusOK, g.Faults())
}

func (c chargeRequest) validate() []web.Fault {
	faults := text(text(nil, "order_id", c.OrderID), "customer_id", c.CustomerID)
	if c.Amount < 0 {
		faults = append(faults, web.Fault{Pointer: "#/amount", Detail: "must not be negative"})
	}
	if len(c.Currency) != 3 {
		faults = append(faults, web.Fault{Pointer: "#/currency", Detail: "must have three letters"})
	}
	return faults
}

// text looks at a member of a body that names something.
func text(faults []web.Fault, name, value string) []web.Fault {
	if isText(value) {
		return faults
	}
	return append(faults, web.Fault{Pointer: "#/" + name, Detail: fmt.Sprintf("must have 1 to %d bytes", maxText)})
}

// invalid answers that a charge or a void cannot be made as it is.
func invalid(w http.ResponseWriter, what string, faults []web.Fault) {
	p := web.NewProblem(http.StatusBadRequest, "invalid-"+what, "The "+what+" cannot be made as it is.")
	p.Errors = faults
	p.Write(w)
}

func isText(s string) bool { return s != "" && len(s) <= maxText }

// read reads the idempotency key and the body. If one of them is wrong it answers
// with a problem document, and ok is false.
func read(w http.ResponseWriter, r *http.Request, body any) (key string, ok bool) {
	key = r.Header.Get("Idempotency-Key")
	if !isText(key) {
		refuse(w, http.StatusBadRequest, "idempotency-key-missing", fmt.Sprintf("Send one Idempotency-Key of 1 to %d bytes.", maxText))
		return "", false
	}
	return key, decode(w, r, body)
}

// decode reads the body. If it is wrong it answers with a problem document and
// returns false.
func decode(w http.ResponseWriter, r *http.Request, body any) bool {
	p := web.ReadJSON(w, r, maxBody, body)
	if p != nil {
		p.Write(w)
	}
	return p == nil
}

// refuse answers with a problem document.
func refuse(w http.ResponseWriter, status int, kind, detail string) {
	web.NewProblem(status, kind, detail).Write(w)
}
