// Package deduptest proves ledgers. [Run] is the conformance suite that every
// implementation of [dedup.Ledger] passes; [RunModel] compares one with a small
// model under random sequences of calls; [Faulty] makes calls fail before or
// after they take effect, for tests of what stands on a ledger.
//
// # Where rules differ
//
// The workers of most ledgers compete for each event. With [dedup.Partitions] an event
// belongs to one worker at a time ([Backend.Owned], [Owner]). The suite wants this of them:
//
//	what                       | competing (KV, Memory, outbox.Ledger) | owned (Partitions)
//	a second worker claims     | Busy while the lease lasts            | Claimed: it has taken the partition
//	a worker has died          | its lease ends, a crash is counted    | the next one goes on at once; a crash is
//	                           |                                       | counted if the event said that it starts
//	a worker renews its lease  | it keeps the event                    | there are no leases
//	an overtaken worker        | each call says ErrLeaseLost           | each call from its first write on
//	a claimed event's mark     | "claimed"                             | none
//	given back, nothing failed | "waiting"                             | none, or "waiting" if it said that it starts
//	a claim's lost answer      | the claim stands until its lease ends | cannot be: a claim is in its own process
//	RunModel                   | all                                   | has a model of its own, in package dedup
//
// All else is the same for every ledger.
//
// The package is imported from tests only.
package deduptest
