// Package target reads how to reach a Postgres database, for the pool of package
// postgres and the replication connection of package cdc.
package target

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/farandole/farandole/outbox"
)

// connectTimeout is for targets without connect_timeout.
const connectTimeout = 10 * time.Second

// Parse reads a URL or a keyword string, as in "postgres://shop@db/orders" or
// "host=db dbname=orders". The error matches [outbox.ErrConfig] and shows no password.
func Parse(target string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		return nil, fmt.Errorf("%w: postgres: target: %s", outbox.ErrConfig, withoutTarget(err))
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "farandole"
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	return cfg, nil
}

// withoutTarget says what is wrong with a target and quotes no piece of it: what
// pgx takes for a port can be half a password with a slash in it.
func withoutTarget(err error) string {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return "cannot be parsed"
	}
	unnamed := *parse
	unnamed.ConnString = ""
	text, _, _ := strings.Cut(unnamed.Error(), " (") // the cause, which quotes
	return strings.ReplaceAll(text, " ``", "")
}
