package sqltap

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Verdict is what becomes of a statement.
type Verdict int

// The verdicts. A connection that breaks takes its open transaction along.
const (
	Pass    Verdict = iota
	Break           // the connection breaks before the statement
	Lose            // the connection breaks after it: its answer is lost
	Cut             // as Break, and there will be no other connection
	LoseCut         // as Lose, and there will be no other connection
)

// A Hook judges statements: their text and, a line each, those arguments that
// are texts; BEGIN and COMMIT for what transactions do. It is called before the
// statement, whatever the verdict, and by several goroutines.
type Hook func(statement string) Verdict

// ErrBroken is what a program gets whose connection has broken.
var ErrBroken = fmt.Errorf("sqltap: the connection is broken: %w", io.ErrUnexpectedEOF)

// Tap is in front of a database.
type Tap struct {
	pool  *sql.DB
	begin string
	hook  Hook

	once sync.Once
	cut  chan struct{}
}

// New returns a tap for one program, with the connections of pool, which
// belongs to it from now on. Each is greeted with the statement begin, if there
// is one. hook, which may be nil, judges what is sent.
func New(pool *sql.DB, begin string, hook Hook) *Tap {
	if hook == nil {
		hook = func(string) Verdict { return Pass }
	}
	return &Tap{pool: pool, begin: begin, hook: hook, cut: make(chan struct{})}
}

// Close closes the pool; [sql.DB.Close] does it.
func (t *Tap) Close() error { return t.pool.Close() }

// Cut cuts the program off: open transactions are rolled back with their next
// statement at the latest.
func (t *Tap) Cut() { t.once.Do(func() { close(t.cut) }) }

// IsCut is closed when the program has been cut off: with LoseCut, after the
// statement.
func (t *Tap) IsCut() <-chan struct{} { return t.cut }

func (t *Tap) isCut() bool {
	select {
	case <-t.cut:
		return true
	default:
		return false
	}
}

var (
	_ driver.Connector = (*Tap)(nil)
	_ io.Closer        = (*Tap)(nil)
)

// Driver is the pool's.
func (t *Tap) Driver() driver.Driver { return t.pool.Driver() }

// Connect takes a connection out of the pool.
func (t *Tap) Connect(ctx context.Context) (driver.Conn, error) {
	if t.isCut() {
		return nil, ErrBroken
	}
	taken, err := t.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{tap: t, taken: taken}
	err = taken.Raw(func(raw any) error {
		c.inner = raw.(inner) //nolint:forcetypeassert // what the drivers of this module have
		if t.begin == "" {
			return nil
		}
		_, err := c.inner.ExecContext(ctx, t.begin, nil)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// Nth gives v to the n-th statement, counted from 1, for which match holds, and
// lets all others pass.
func Nth(n int, v Verdict, match func(statement string) bool) Hook {
	var mu sync.Mutex
	return func(statement string) Verdict {
		if !match(statement) {
			return Pass
		}
		mu.Lock()
		defer mu.Unlock()
		if n--; n == 0 {
			return v
		}
		return Pass
	}
}
