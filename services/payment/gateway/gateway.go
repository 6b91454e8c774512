package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
)

// Config is what the gateway may be told.
type Config struct {
	// Path of the journal file; it is made if it does not exist. One gateway
	// at a time may have it. Defaults to "" (books in memory).
	Path string
	// Logger. Defaults to silence.
	Logger zerolog.Logger
}

// Gateway is the payment provider. It is safe for concurrent use.
type Gateway struct {
	log    zerolog.Logger
	faults *injector

	mu      sync.Mutex // orders what happens to the books, and their journal likewise
	books   *books
	journal *journal
}

// New opens the books. It returns an error matching [ErrCorrupt] when the
// journal cannot be trusted, and the file system's errors.
func New(cfg Config) (*Gateway, error) {
	g := &Gateway{log: cfg.Logger, faults: newInjector(), books: newBooks()}
	var err error
	if g.journal, err = openJournal(cfg.Path, cfg.Logger, g.books.apply); err != nil {
		return nil, fmt.Errorf("gateway: open books: %w", err)
	}
	return g, nil
}

// Close closes the journal. Requests that would change the books fail from then on.
func (g *Gateway) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.journal.close(); err != nil {
		return fmt.Errorf("gateway: close books: %w", err)
	}
	return nil
}

// charge answers a charge request from the books, and enters it if it is new.
// What it returns is on disk.
func (g *Gateway) charge(key string, r chargeRequest) (a account, replayed bool, err error) {
	a, replayed, err = g.enterCharge(key, r)
	if err != nil {
		return account{}, false, err
	}
	return a, replayed, g.journal.commit()
}

func (g *Gateway) enterCharge(key string, r chargeRequest) (a account, replayed bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, known, err := g.books.charged(key, r)
	if known || err != nil {
		return a, known, err
	}
	e := entry{Kind: kindCharge, Key: key, chargeRequest: r, ID: newID("ch", key)}
	if reason, declined := g.faults.declines(r); declined {
		e.Kind, e.ID, e.Reason = kindDecline, "", reason
	}
	if err := g.enter(e); err != nil {
		return account{}, false, err
	}
	return *g.books.accounts[key], false, nil
}

// void answers a void request from the books, and enters it if it is new.
// What it returns is on disk.
func (g *Gateway) void(key string, r voidRequest) (a account, replayed bool, err error) {
	a, replayed, err = g.enterVoid(key, r)
	if err != nil {
		return account{}, false, err
	}
	return a, replayed, g.journal.commit()
}

func (g *Gateway) enterVoid(key string, r voidRequest) (a account, replayed bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, known, err := g.books.voided(key, r)
	if known || err != nil {
		return a, known, err
	}
	e := entry{Kind: kindVoid, Key: r.ChargeKey, VoidKey: key, chargeRequest: chargeRequest{OrderID: r.OrderID}}
	if a.ChargeID != "" {
		e.ID = newID("re", r.ChargeKey)
	}
	if err := g.enter(e); err != nil {
		return account{}, false, err
	}
	return *g.books.accounts[r.ChargeKey], false, nil
}

// enter writes the journal first: the books never know more than it does.
func (g *Gateway) enter(e entry) error {
	if err := g.journal.append(e); err != nil {
		return err
	}
	return g.books.apply(e)
}

// newID makes the id that follows from an idempotency key.
func newID(prefix, key string) string {
	sum := sha256.Sum256([]byte(key))
	return prefix + "-" + hex.EncodeToString(sum[:10])
}
