package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// booksTimeout is how long reading the gateway's books may take.
const booksTimeout = 30 * time.Second

func (e *Evidence) collectBooks(ctx context.Context, booksURL string) error {
	ctx, cancel := context.WithTimeout(ctx, booksTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(booksURL, "/")+"/books", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return e.readBooks(resp.Body)
}

func (e *Evidence) readBooks(r io.Reader) error {
	var books struct {
		Charges []struct {
			ID       string `json:"charge_id"`
			Order    string `json:"order_id"`
			Amount   int64  `json:"amount"`
			Currency string `json:"currency"`
			Refunded int64  `json:"refunded"`
		} `json:"charges"`
	}
	if err := json.NewDecoder(r).Decode(&books); err != nil {
		return err
	}
	for _, c := range books.Charges {
		e.Charges = append(e.Charges, Charge{ID: c.ID, Order: c.Order, Currency: c.Currency, Amount: c.Amount, Refunded: c.Refunded})
	}
	return nil
}
