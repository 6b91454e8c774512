package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/database"
	"github.com/farandole/farandole/outbox"
)

// outboxFlags name an outbox.
type outboxFlags struct {
	Store       string `placeholder:"PATH" help:"SQLite database with an outbox: the file, or a directory with order.db in it."`
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Postgres database with an outbox: postgres://USER:PASSWORD@HOST/NAME; better in the environment."`
	TablePrefix string `placeholder:"PREFIX" help:"What the names of the outbox's tables begin with. Default: nothing."`
}

// given reports whether an outbox is named.
func (f outboxFlags) given() bool { return f.Store != "" || f.DatabaseURL != "" }

// target is what database.Open takes.
func (f outboxFlags) target() (string, error) {
	switch {
	case f.Store != "" && f.DatabaseURL != "":
		return "", usageErrorf("--store and --database-url (DATABASE_URL) both name an outbox: leave one out")
	case f.DatabaseURL == "":
		if info, err := os.Stat(f.Store); err == nil && info.IsDir() {
			return filepath.Join(f.Store, orderFile), nil
		}
		return f.Store, nil
	case !database.IsURL(f.DatabaseURL): // not shown: it may hold a password
		return "", usageErrorf("--database-url (DATABASE_URL) wants a URL that begins with postgres://")
	default:
		return f.DatabaseURL, nil
	}
}

// open opens the outbox. Whoever called it closes the database.
func (f outboxFlags) open(names event.Names) (*database.Database, *outbox.Outbox, error) {
	target, err := f.target()
	if err != nil {
		return nil, nil, err
	}
	db, err := database.Open(target)
	if err != nil {
		return nil, nil, err
	}
	o, err := db.Outbox(outbox.Config{Prefix: f.TablePrefix, Names: names})
	if err != nil {
		return nil, nil, errors.Join(usageError{err.Error()}, db.Close())
	}
	return db, o, nil
}

// withOutbox runs f with the outbox that flags name. It makes no file and no tables.
func (a *app) withOutbox(flags outboxFlags, f func(*outbox.Outbox) error) (err error) {
	target, err := flags.target()
	if err != nil {
		return err
	}
	if !database.IsURL(target) {
		if _, err := os.Stat(target); err != nil {
			return fmt.Errorf("no outbox: %w", err)
		}
	}
	db, o, err := flags.open(event.Names{Prefix: a.root.Connection.Prefix, TypePrefix: a.root.Connection.TypePrefix})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return f(o)
}

// rowsOnly returns the error of what was done with dead letters. With an outbox, a
// server that is not there is no reason to say nothing of parked rows, which were
// seen to first: then it says what is missing, and the error is only an exit code.
func (a *app) rowsOnly(err error, missing string) error {
	if !a.root.DLQ.Outbox.given() || !errors.Is(err, bus.ErrConnect) && !errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrNoStream) {
		return err
	}
	a.say("only the outbox; dead letters in NATS were not %s: %s", missing, strings.TrimSpace(err.Error())+advice(err))
	return errSilent
}
