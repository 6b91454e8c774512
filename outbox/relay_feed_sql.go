package outbox

// tailStatements are what a relay that reads a feed says besides, to Postgres.
// A row without a time (due_at) that nobody holds is the feed's; once it has a
// time it is the claims' until it is published or parked.
type tailStatements struct {
	// claim is relayStatements.claim, but takes rows without a time only when
	// they are $4 milliseconds old.
	claim string
	// fetch returns those rows of the ids $1 that are the feed's, in the order of
	// $1: none of which an earlier one of its key is the claims', and no more
	// than make $2 bytes, but for the last one.
	fetch string
	// yield makes those rows of the ids $1 that are the feed's the claims'.
	yield string
	// yieldAll does that with the first $2 rows after id $1, and says how many
	// there were and which was the last.
	yieldAll string
	// lease leases those rows of the ids $1 that are the feed's to owner $2 for $3
	// milliseconds.
	lease string
}

func tailStatementsOf(prefix string) tailStatements {
	// For the indexes' sake (see relayStatements), as is OFFSET 0: one look at the
	// primary key for each id, whatever Postgres thinks of the table's size.
	const feeds = `status NOT IN ('PROCESSING', 'PUBLISHED', 'DEAD_LETTER') AND due_at IS NULL`
	s := tailStatements{
		claim: `SELECT id, message_id, subject, key, headers, data, attempts, story, {age}, coalesce(consumer, '') FROM {outbox}_claim($1, $2, {ms $3}, {ms $4})`,
		fetch: `SELECT id, message_id, subject, key, headers, data, attempts, story, {age}, coalesce(consumer, '')
			FROM (
				SELECT o.*, told.n, sum(octet_length(o.data)) OVER (ORDER BY told.n) - octet_length(o.data) AS before
				FROM json_array_elements_text(CAST($1 AS json)) WITH ORDINALITY AS told (id, n)
				CROSS JOIN LATERAL (
					SELECT * FROM {outbox} AS o
					WHERE o.id = CAST(told.id AS bigint) AND ` + feeds + ` AND NOT EXISTS (
						SELECT FROM {outbox} AS h
						WHERE h.key = o.key AND h.id < o.id AND h.open AND h.due_at IS NOT NULL
					)
					OFFSET 0
				) AS o
			) AS fresh WHERE before < $2 ORDER BY n`,
		yield: `UPDATE {outbox} SET due_at = {now} WHERE id {in $1} AND ` + feeds,
		yieldAll: `WITH page AS (
				SELECT id FROM {outbox} WHERE open AND status = 'PENDING' AND due_at IS NULL AND id > $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
			), yielded AS (
				UPDATE {outbox} AS o SET due_at = {now} FROM page WHERE o.id = page.id
			)
			SELECT count(*), coalesce(max(id), 0) FROM page`,
		lease: `UPDATE {outbox} SET status = 'PROCESSING', owner = $2, due_at = {now} + {ms $3}
			WHERE id {in $1} AND ` + feeds,
	}
	for _, p := range []*string{&s.claim, &s.fetch, &s.yield, &s.yieldAll, &s.lease} {
		*p = render(Postgres, prefix, *p)
	}
	return s
}
