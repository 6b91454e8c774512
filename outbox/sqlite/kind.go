package sqlite

import (
	"regexp"
	"strings"
)

// kind is what a statement does, as far as its first words tell.
type kind int

const (
	// read statements do not queue. Most PRAGMAs read as well; to queue for one that
	// does not could be to wait for oneself. Whatever commits waits for the disk.
	read kind = iota
	// write statements queue, and all that are not known: that costs a moment.
	write
	// control statements begin a transaction or belong to one; commit ends it.
	control
	commit
)

var (
	firstWord = regexp.MustCompile(`^(?:\s|--[^\n]*(?:\n|$)|(?s:/\*.*?\*/))*([A-Za-z]*)`)
	changing  = regexp.MustCompile(`(?i)\b(insert|update|delete|replace)\b`)
)

func kindOf(query string) kind {
	switch strings.ToUpper(firstWord.FindStringSubmatch(query)[1]) {
	case "SELECT", "VALUES", "EXPLAIN", "PRAGMA":
		return read
	case "WITH":
		if !changing.MatchString(query) {
			return read
		}
	case "BEGIN", "ROLLBACK", "SAVEPOINT", "RELEASE":
		return control
	case "COMMIT", "END":
		return commit
	}
	return write
}

// isOne reports whether a text is one statement and not a script of several. A
// semicolon in a string makes it look like a script.
func isOne(query string) bool {
	return !strings.Contains(strings.TrimRight(query, "; \t\r\n"), ";")
}
