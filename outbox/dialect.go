package outbox

import (
	"regexp"
	"strings"
)

// Dialect is a database's.
type Dialect int

// The databases.
const (
	SQLite   Dialect = iota + 1 // 3.42 or later, in WAL mode
	Postgres                    // 14 or later
)

// statements are what one outbox and inbox say to their database.
type statements struct {
	insert string
	// insertStep is insert for a row of the step of consumer $6. That column is
	// not for everybody who may insert.
	insertStep string
	relay      relayStatements
}

// statementsOf renders the statements for a dialect and prefix.
func statementsOf(d Dialect, prefix string) statements {
	return statements{
		insert: render(d, prefix, `INSERT INTO {outbox} (message_id, subject, key, headers, data) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (message_id) DO NOTHING`),
		insertStep: render(d, prefix, `INSERT INTO {outbox} (message_id, subject, key, headers, data, consumer) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (message_id) DO NOTHING`),
		relay: relayStatementsOf(d, prefix),
	}
}

// render makes a statement of a template that both databases share. Both number
// parameters as $1; where they differ the template says:
//
//	{outbox}, {inbox}  the tables
//	{now}              the database's clock
//	{unix t}           a time as milliseconds since 1970
//	{ms $1}            so many milliseconds, to be added to a time or taken from it
//	{in $1}            is one of the numbers of a JSON list, as in: id {in $1}
//	{age}              how many milliseconds ago a row of the outbox was created
//	{open}, {parked}   what the indexes of the outbox know of a row
//	{replayed}         a parked row is being replayed; its story tells, see [story]
func render(d Dialect, prefix, template string) string {
	now, unix, ms := "CAST(unixepoch('subsec') * 1000 AS INTEGER)", "$1", "CAST($1 AS INTEGER)"
	in, open, parked := "IN (SELECT value FROM json_each($1))", "status IN ('PENDING', 'PROCESSING')", "status = 'DEAD_LETTER'"
	if d == Postgres {
		now, unix, ms = "clock_timestamp()", "CAST(extract(epoch FROM $1) * 1000 AS bigint)", "CAST($1 AS bigint) * interval '1 ms'"
		in = "= ANY (CAST(translate($1, '[]', '{}') AS bigint[]))" // faster than as JSON
		open, parked = "open", "parked"
	}
	s := strings.ReplaceAll(template, "{age}", "{unix {now}} - {unix created_at}")
	s = unixWord.ReplaceAllString(s, unix)
	s = msWord.ReplaceAllString(s, ms)
	return strings.NewReplacer(
		"{outbox}", prefix+"outbox", "{inbox}", prefix+"inbox", "{now}", now, "{in $1}", in, "{open}", open, "{parked}", parked,
		// No text in the story can look like this: its quotes are escaped.
		"{replayed}", open+` AND story LIKE '%,"replayed":{%'`,
	).Replace(s)
}

var (
	unixWord = regexp.MustCompile(`\{unix ((?:\{now\}|[^{}])+)\}`)
	msWord   = regexp.MustCompile(`\{ms (\$\d)\}`)
)
