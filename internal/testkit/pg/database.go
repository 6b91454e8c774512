package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// CreateDatabase makes an empty database with a random name, and returns the
// name, for [Server.URL].
func (s *Server) CreateDatabase(ctx context.Context) (string, error) {
	name := "t" + strings.ToLower(rand.Text()[:12])
	err := s.administer(ctx, func(conn *pgx.Conn) error {
		var version int
		if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
			return err
		}
		create := "CREATE DATABASE " + name
		if version >= 150000 { // which would write the copy to its log as well, in more than twice the time
			create += " STRATEGY file_copy"
		}
		_, err := conn.Exec(ctx, create)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("pg: create database: %w", err)
	}
	return name, nil
}

// DropDatabase removes a database with all that uses it: connections are
// ended and replication slots dropped.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	err := s.administer(ctx, func(conn *pgx.Conn) error {
		if err := dropSlots(ctx, conn, name); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: drop database %s: %w", name, err)
	}
	return nil
}

// dropSlots drops the database's replication slots, which FORCE does not.
func dropSlots(ctx context.Context, conn *pgx.Conn, database string) error {
	for {
		// A connection that is being ended holds its slot for a moment longer.
		if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
			WHERE database = $1 AND active_pid IS NOT NULL`, database); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
			WHERE database = $1 AND active_pid IS NULL`, database); err != nil {
			return err
		}
		var left int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_replication_slots WHERE database = $1`, database).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d replication slots are left: %w", left, ctx.Err())
		case <-time.After(step):
		}
	}
}

func (s *Server) administer(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL(maintenance))
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(ctx))
}
