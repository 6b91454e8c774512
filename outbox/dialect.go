package outbox

import "strings"

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
	relay  relayStatements
}

// statementsOf renders the statements for a dialect and prefix.
func statementsOf(d Dialect, prefix string) statements {
	return statements{
		insert: render(d, prefix, `INSERT INTO {outbox} (message_id, subject, key, headers, data) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (message_id) DO NOTHING`),
		relay: relayStatementsOf(d, prefix),
	}
}

// render makes a statement of a template that both databases share. Both number
// parameters as $1; where they differ the template says:
//
//	{outbox}, {inbox}  the tables
//	{now}              the database's clock
//	{ms $1}            so many milliseconds, to be added to a time or taken from it
//	{ids $1}           the numbers of a JSON list, as in: id IN {ids $1}
//	{age}              how many milliseconds ago a row of the outbox was created
func render(d Dialect, prefix, template string) string {
	words := []string{
		"{outbox}", prefix + "outbox", "{inbox}", prefix + "inbox",
		"{now}", "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
		"{ms $1}", "CAST($1 AS INTEGER)", "{ms $2}", "CAST($2 AS INTEGER)", "{ms $3}", "CAST($3 AS INTEGER)", "{ms $4}", "CAST($4 AS INTEGER)",
		"{ids $1}", "(SELECT value FROM json_each($1))",
		"{age}", "CAST(unixepoch('subsec') * 1000 AS INTEGER) - created_at",
	}
	if d == Postgres {
		words = []string{
			"{outbox}", prefix + "outbox", "{inbox}", prefix + "inbox",
			"{now}", "clock_timestamp()",
			"{ms $1}", "CAST($1 AS bigint) * interval '1 ms'", "{ms $2}", "CAST($2 AS bigint) * interval '1 ms'", "{ms $3}", "CAST($3 AS bigint) * interval '1 ms'", "{ms $4}", "CAST($4 AS bigint) * interval '1 ms'",
			"{ids $1}", "(SELECT CAST(value AS bigint) FROM json_array_elements_text(CAST($1 AS json)))",
			"{age}", "CAST(extract(epoch FROM clock_timestamp() - created_at) * 1000 AS bigint)",
		}
	}
	return strings.NewReplacer(words...).Replace(template)
}
