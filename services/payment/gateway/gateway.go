package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
)

// Config holds the settings of the gateway.
type Config struct {
	// Path of the journal file, which is created if it does not exist. Two
	// gateways must not use one file at the same time. Defaults to "": the books
	// are in memory.
	Path string
	// Logger. Defaults to silence.
	Logger zerolog.Logger
}

// Gateway is the payment provider. It is safe for concurrent use.
type Gateway struct {
	log    zerolog.Logger
	faults *injector

	mu      sync.Mutex // held while the books are changed, so that the journal has the same order
	books   *books
	journal *journal
}

// New opens the books. Its error matches [ErrCorrupt] if the journal is damaged,
// else it is the file system's.
func New(cfg Config) (*Gateway, error) {
	g := &Gateway{log: cfg.Logger, faults: newInjector(), books: newBooks()}
	var err error
	if g.journal, err = openJournal(cfg.Path, cfg.Logger, g.books.apply); err != nil {
		return nil, fmt.Errorf("gateway: open books: %w", err)
	}
	return g, nil
}

// Close closes the journal. From then on a request that would change the books
// fails.
func (g *Gateway) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.journal.close(); err != nil {
		return fmt.Errorf("gateway: close books: %w", err)
	}
	return nil
}

// charge answers a charge request from the books. A new charge is entered first.
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

// void answers a void request from the books. A new void is entered first. What it
// returns is on disk.
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

// enter adds an entry to the journal and then to the books, so that the books
// never hold more than the journal.
func (g *Gateway) enter(e entry) error {
	if err := g.journal.append(e); err != nil {
		return err
	}
	return g.books.apply(e)
}

// newID makes an id from an idempotency key: the same key has the same id.
func newID(prefix, key string) string {
	sum := sha256.Sum256([]byte(key))
	return prefix + "-" + hex.EncodeToString(sum[:10])
}
