package cdc

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// columnLists is the first version whose publications can leave out columns.
	columnLists = 150000
	plugin      = "pgoutput"
	// lost is the state of a slot whose log the server has removed.
	lost = "lost"
)

// open makes publication and slot unless they are there, and begins to read.
func (f *Feed) open(ctx context.Context, conn *pgconn.PgConn) error {
	// The publication first: a slot cannot read with one that is younger.
	if err := f.ensurePublication(ctx); err != nil {
		return err
	}
	if err := f.ensureSlot(ctx, conn); err != nil {
		return err
	}
	// Position 0 is where the slot stands.
	err := pglogrepl.StartReplication(ctx, conn, f.cfg.Slot, 0, pglogrepl.StartReplicationOptions{
		Mode:       pglogrepl.LogicalReplication,
		PluginArgs: []string{"proto_version '1'", "publication_names '" + f.table + "'"},
	})
	return explain(err)
}

// ensurePublication makes the publication of inserts into the table, unless it exists.
// If the server can, it publishes the ids alone: the relay reads the rows from the table.
func (f *Feed) ensurePublication(ctx context.Context) error {
	var version int
	var level string
	var exists, suits bool
	row := f.o.DB().QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		p.pubname IS NOT NULL, coalesce(p.pubinsert, false) AND EXISTS (SELECT FROM pg_publication_tables t
			WHERE t.pubname = $1 AND format('%I.%I', t.schemaname, t.tablename)::regclass = $2::regclass)
		FROM (SELECT) AS one LEFT JOIN pg_publication p ON p.pubname = $1`, f.table, f.table)
	if err := row.Scan(&version, &level, &exists, &suits); err != nil {
		return explain(err)
	}
	switch {
	case level != "logical":
		return fmt.Errorf("%w: wal_level is %s: set it to logical and restart the server", ErrSetup, level)
	case suits:
		return nil
	case exists:
		return fmt.Errorf("%w: publication %s does not publish the inserts into table %s: drop it, and it is made anew",
			ErrSetup, f.table, f.table)
	}
	what := f.table
	if version >= columnLists {
		what += " (id)"
	}
	_, err := f.o.DB().ExecContext(ctx, "CREATE PUBLICATION "+f.table+" FOR TABLE "+what+" WITH (publish = 'insert')")
	if code(err) == codeDuplicateObject { // another relay was quicker
		return nil
	}
	return explain(err)
}

// ensureSlot makes the slot, unless it exists. One that the server has given up it
// drops and makes anew.
func (f *Feed) ensureSlot(ctx context.Context, conn *pgconn.PgConn) error {
	s, err := f.look(ctx)
	if err != nil {
		return err
	}
	switch {
	case s.name == "":
	case !s.here:
		return fmt.Errorf("%w: replication slot %s belongs to another database of this server: choose another name (Config.Slot)",
			ErrSetup, f.cfg.Slot)
	case s.plugin != plugin:
		return fmt.Errorf("%w: replication slot %s has the plugin %q, not %s: choose another name (Config.Slot)",
			ErrSetup, f.cfg.Slot, s.plugin, plugin)
	case s.status == lost:
		f.cfg.Logger.Warn().Str("slot", f.cfg.Slot).
			Msg("the server has given up the replication slot (max_slot_wal_keep_size); making it anew, the relay polls what it has missed")
		err = pglogrepl.DropReplicationSlot(ctx, conn, f.cfg.Slot, pglogrepl.DropReplicationSlotOptions{})
		if err != nil && code(err) != codeUndefinedObject {
			return explain(err)
		}
	default:
		return nil
	}
	_, err = pglogrepl.CreateReplicationSlot(ctx, conn, f.cfg.Slot, plugin, pglogrepl.CreateReplicationSlotOptions{
		Mode:           pglogrepl.LogicalReplication,
		SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	if code(err) == codeDuplicateObject { // another relay was quicker
		return nil
	}
	if err == nil {
		f.cfg.Logger.Info().Str("slot", f.cfg.Slot).Msg("replication slot made")
	}
	return explain(err)
}
