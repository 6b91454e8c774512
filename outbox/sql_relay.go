package outbox

import "strings"

// relayStatements are the statements of a relay. Each runs by itself, outside of any
// transaction: a relay that is stopped between two of them holds no lock.
//
// Those that take ids do not ask for {open} rows. Postgres would use that index for it,
// and believe it to be as small as it was at the last ANALYZE.
type relayStatements struct {
	// peek, on SQLite, returns ids and sizes of up to $1 rows that can be claimed
	// at $2 (milliseconds since 1970), by id.
	peek string
	// claim leases rows to owner $2 for $3 milliseconds. On SQLite $1 are ids, and rows
	// that can no longer be claimed are left out; on Postgres $1 is the most rows, which
	// it returns by id.
	claim string
	// fetch, on SQLite, returns the rows with the ids $1 that owner $2 holds, by id.
	fetch string
	// mark sets the rows with the ids $1 that owner $2 holds to PUBLISHED. Owner ''
	// stands for the rows that nobody has leased.
	mark string
	// giveBack ends the lease of rows that owner $2 holds and that were not published:
	// $1 is a JSON list of unpublishedRow.
	giveBack string
	// count says of the next $2 rows after id $1 how many there are, the id of the
	// last one, and how many of them were published less than $3 milliseconds ago.
	count string
	// clean deletes those after id $1 up to $2 that were published earlier.
	clean string
	// forget deletes up to $1 marks that have expired.
	forget string
}

func relayStatementsOf(d Dialect, prefix string) relayStatements {
	s := relayStatements{
		mark: `UPDATE {outbox} SET status = 'PUBLISHED', published_at = {now}, due_at = NULL, owner = NULL
			WHERE id {in $1} AND coalesce(owner, '') = $2 AND status NOT IN ('PUBLISHED', 'DEAD_LETTER')`,
		count: `SELECT count(*), coalesce(max(id), 0),
				count(CASE WHEN status = 'PUBLISHED' AND published_at >= {now} - {ms $3} THEN 1 END)
			FROM (SELECT id, status, published_at FROM {outbox} WHERE id > $1 ORDER BY id LIMIT $2) AS w`,
		clean: `DELETE FROM {outbox}
			WHERE id > $1 AND id <= $2 AND status = 'PUBLISHED' AND published_at < {now} - {ms $3}`,
		forget: `DELETE FROM {inbox} WHERE expires_at < {now} AND (consumer, event_key) IN
			(SELECT consumer, event_key FROM {inbox} WHERE expires_at < {now} ORDER BY expires_at LIMIT $1)`,
	}
	switch d {
	case SQLite:
		// A due_at later than maxLease is ignored: no relay sets it, and it would hold
		// the key for ever.
		const free = `o.status IN ('PENDING', 'PROCESSING') AND (o.due_at IS NULL OR o.due_at NOT BETWEEN {now} + 1 AND {now} + 3600000) AND NOT EXISTS (
				SELECT 1 FROM {outbox} AS h
				WHERE h.key = o.key AND h.id < o.id AND h.due_at IS NOT NULL AND h.due_at BETWEEN {now} + 1 AND {now} + 3600000
			)`
		// The time is a parameter because SQLite's own differs from row to row. A row that
		// falls due in between would not be found, and no longer hold back its followers.
		s.peek = `SELECT o.id, length(o.data) FROM {outbox} AS o WHERE ` + strings.ReplaceAll(free, "{now}", "$2") + ` ORDER BY o.id LIMIT $1`
		// The subquery sees the table as it was before the statement.
		s.claim = `UPDATE {outbox} SET status = 'PROCESSING', owner = $2, due_at = {now} + {ms $3}
			WHERE id IN (SELECT o.id FROM {outbox} AS o WHERE o.id {in $1} AND ` + free + `)`
		s.fetch = `SELECT id, message_id, subject, key, headers, data, CAST(attempts AS INTEGER), story, {age}, coalesce(consumer, '') FROM {outbox}
			WHERE id {in $1} AND owner = $2 ORDER BY id`
		s.giveBack = `UPDATE {outbox} AS o SET status = given.status, owner = NULL, attempts = min(CAST(o.attempts AS INTEGER), 1000000) + given.attempts,
				due_at = CASE WHEN given.delay IS NOT NULL THEN {now} + given.delay END, story = coalesce(given.story, o.story)
			FROM (
				SELECT value ->> 'id' AS id, value ->> 'status' AS status, value ->> 'attempts' AS attempts,
					value ->> 'delay' AS delay, value ->> 'story' AS story
				FROM json_each($1)
			) AS given
			WHERE o.id = given.id AND coalesce(o.owner, '') = $2 AND o.status NOT IN ('PUBLISHED', 'DEAD_LETTER')`
	case Postgres:
		// While somebody holds a lock on a row by hand, the statement gives up soon: the
		// other rows of the batch wait with it, and so does who waits for its locks.
		const bounded = `WITH bounded AS MATERIALIZED (SELECT set_config('lock_timeout', '2s', true)) `
		s.mark = bounded + strings.Replace(s.mark, "WHERE", "FROM bounded WHERE", 1)
		s.claim = `SELECT id, message_id, subject, key, headers, data, attempts, story, {age}, coalesce(consumer, '') FROM {outbox}_claim($1, $2, {ms $3})`
		s.giveBack = bounded + `UPDATE {outbox} AS o SET status = given.status, owner = NULL, attempts = least(o.attempts, 1000000) + given.attempts,
				due_at = {now} + given.delay * interval '1 ms', story = coalesce(given.story, o.story)
			FROM bounded, json_to_recordset(CAST($1 AS json)) AS given (id bigint, status text, attempts integer, delay bigint, story text)
			WHERE o.id = given.id AND coalesce(o.owner, '') = $2 AND o.status NOT IN ('PUBLISHED', 'DEAD_LETTER')`
	}
	for _, p := range []*string{&s.peek, &s.claim, &s.fetch, &s.mark, &s.giveBack, &s.count, &s.clean, &s.forget} {
		*p = render(d, prefix, *p)
	}
	return s
}
