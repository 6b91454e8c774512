package outbox

// feedStatements are the statements that a relay with a feed needs besides
// relayStatements. They are for Postgres.
type feedStatements struct {
	// claim is relayStatements.claim, but takes rows without a due_at only when
	// they are $4 milliseconds old.
	claim string
	// fetch returns those rows of the ids $1 that are the feed's, in the order of
	// $1: none that follows a row of its key that was handed over, and no more
	// than make $2 bytes, but for the last one.
	fetch string
	// handOver hands over to the claims those rows of the ids $1 that are the feed's.
	handOver string
	// handOverAll does so with the next $2 rows after id $1. It returns how many there
	// were, and the last one's id.
	handOverAll string
	// lease leases those rows of the ids $1 that are the feed's to owner $2 for $3
	// milliseconds.
	lease string
}

func feedStatementsOf(prefix string) feedStatements {
	// The condition is not {open} for the reason that relayStatements tells. OFFSET 0
	// below has the same one: Postgres looks each id up in the primary key, whatever
	// it thinks of the table's size.
	const feeds = `status NOT IN ('PROCESSING', 'PUBLISHED', 'DEAD_LETTER') AND due_at IS NULL`
	s := feedStatements{
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
		handOver: `UPDATE {outbox} SET due_at = {now} WHERE id {in $1} AND ` + feeds,
		handOverAll: `WITH page AS (
				SELECT id FROM {outbox} WHERE open AND status = 'PENDING' AND due_at IS NULL AND id > $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
			), handed_over AS (
				UPDATE {outbox} AS o SET due_at = {now} FROM page WHERE o.id = page.id
			)
			SELECT count(*), coalesce(max(id), 0) FROM page`,
		lease: `UPDATE {outbox} SET status = 'PROCESSING', owner = $2, due_at = {now} + {ms $3}
			WHERE id {in $1} AND ` + feeds,
	}
	for _, p := range []*string{&s.claim, &s.fetch, &s.handOver, &s.handOverAll, &s.lease} {
		*p = render(Postgres, prefix, *p)
	}
	return s
}
