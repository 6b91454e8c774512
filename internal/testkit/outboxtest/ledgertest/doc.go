// Package ledgertest proves outbox.Ledger on a kind of database: the conformance
// suite of package deduptest, and what is special about the transactions of
// handlers. It is imported from tests only.
package ledgertest
