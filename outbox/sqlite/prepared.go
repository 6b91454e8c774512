package sqlite

import (
	"context"
	"errors"
)

// maxPrepared is how many statements a connection keeps: a service has a few dozen.
const maxPrepared = 100

// prepared are the statements of a connection that nobody uses at the moment, by their
// text. They are kept because parsing one takes as long as running it.
type prepared map[string]driverStmt

// take returns a statement that is the caller's until it is put back.
func (p prepared) take(ctx context.Context, c driverConn, text string) (driverStmt, error) {
	if s, ok := p[text]; ok {
		delete(p, text)
		return s, nil
	}
	made, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	s, ok := made.(driverStmt)
	if !ok {
		return nil, errors.Join(lacking(made), made.Close())
	}
	return s, nil
}

// put keeps a statement, or closes it if there is one of its text already or too many.
func (p prepared) put(text string, s driverStmt) error {
	if _, there := p[text]; there || len(p) >= maxPrepared {
		return s.Close()
	}
	p[text] = s
	return nil
}

// close closes all of them.
func (p prepared) close() error {
	var errs []error
	for text, s := range p {
		delete(p, text)
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
