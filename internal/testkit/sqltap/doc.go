// Package sqltap lets a test come between a program and its database, one
// statement at a time: the connection breaks before a statement takes effect
// or before its answer is there, or the program is cut off for ever, as one is
// that was killed.
package sqltap
