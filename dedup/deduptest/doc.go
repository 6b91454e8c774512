// Package deduptest proves ledgers. [Run] is the conformance suite that every
// implementation of [dedup.Ledger] passes; [RunModel] compares one with a small
// model under random sequences of calls; [Faulty] makes calls fail before or
// after they take effect, for tests of what stands on a ledger.
//
// It is imported from tests only.
package deduptest
