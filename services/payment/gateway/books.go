package gateway

import "fmt"

// chargeRequest is the body of POST /charges.
type chargeRequest struct {
	OrderID    string `json:"order_id"`
	CustomerID string `json:"customer_id,omitempty"`
	Amount     int64  `json:"amount,omitempty"`   // minor units
	Currency   string `json:"currency,omitempty"` // ISO 4217
}

// voidRequest is the body of POST /voids.
type voidRequest struct {
	ChargeKey string `json:"charge_key"` // the idempotency key of the charge
	OrderID   string `json:"order_id"`
}

// The kinds of journal entry.
const (
	kindCharge  = "charge"
	kindDecline = "decline"
	kindVoid    = "void"
)

// entry is one line of the journal.
type entry struct {
	Kind          string `json:"kind"`
	Key           string `json:"key"`                // the charge's idempotency key
	VoidKey       string `json:"void_key,omitempty"` // the void's own
	chargeRequest        // of a void only the order id
	ID            string `json:"id,omitempty"` // of the charge or the refund
	Reason        string `json:"reason,omitempty"`
}

// account is what the books say about one charge key.
type account struct {
	chargeRequest
	Requested bool   // a charge was requested; false if the key was only voided
	ChargeID  string // empty when nothing was charged
	Reason    string // why it was declined
	Voided    bool
	RefundID  string // empty when nothing was refunded
	Refunded  int64
}

// books hold the accounts that the entries of the journal add up to. They are not
// safe for concurrent use.
type books struct {
	accounts map[string]*account    // by charge key
	voids    map[string]voidRequest // by the void's key
	charges  []*account             // those that were charged, oldest first
}

func newBooks() *books {
	return &books{accounts: map[string]*account{}, voids: map[string]voidRequest{}}
}

// charged looks up a charge. known is false if it is still to be made.
func (b *books) charged(key string, r chargeRequest) (a account, known bool, err error) {
	found, ok := b.accounts[key]
	switch {
	case !ok:
		return account{}, false, nil
	case found.OrderID != r.OrderID || found.Requested && found.chargeRequest != r:
		return account{}, false, errKeyReused
	case found.Voided:
		return account{}, false, errVoided
	}
	return *found, true, nil
}

// voided looks up a void. known is false if it is still to be made; a is then the
// account of its charge, or the zero account if there was no charge yet.
func (b *books) voided(key string, r voidRequest) (a account, known bool, err error) {
	if before, ok := b.voids[key]; ok && before != r {
		return account{}, false, errKeyReused
	}
	found, ok := b.accounts[r.ChargeKey]
	switch {
	case !ok:
		return account{}, false, nil
	case found.OrderID != r.OrderID:
		return account{}, false, fmt.Errorf("%w: the charge is for another order", errKeyReused)
	}
	return *found, found.Voided, nil
}

// apply adds an entry. It refuses one that the gateway cannot have written.
func (b *books) apply(e entry) error {
	a, known := b.accounts[e.Key]
	if e.Key == "" || e.OrderID == "" {
		return fmt.Errorf("%w: %s without key or order", ErrCorrupt, e.Kind)
	}
	switch e.Kind {
	case kindCharge, kindDecline:
		if known || (e.ID != "") != (e.Kind == kindCharge) {
			return fmt.Errorf("%w: %s of key %q is repeated or has no fitting id", ErrCorrupt, e.Kind, e.Key)
		}
		a = &account{chargeRequest: e.chargeRequest, Requested: true, ChargeID: e.ID, Reason: e.Reason}
		if e.Kind == kindCharge {
			b.charges = append(b.charges, a)
		}
	case kindVoid:
		if !known {
			a = &account{chargeRequest: chargeRequest{OrderID: e.OrderID}}
		}
		if a.Voided || a.OrderID != e.OrderID || (e.ID != "") != (a.ChargeID != "") {
			return fmt.Errorf("%w: void of key %q does not fit its charge", ErrCorrupt, e.Key)
		}
		a.Voided, a.RefundID = true, e.ID
		if a.ChargeID != "" {
			a.Refunded = a.Amount
		}
		b.voids[e.VoidKey] = voidRequest{ChargeKey: e.Key, OrderID: e.OrderID}
	default:
		return fmt.Errorf("%w: kind %q", ErrCorrupt, e.Kind)
	}
	b.accounts[e.Key] = a
	return nil
}
