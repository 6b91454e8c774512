// Package dedup is the ledger: which event has taken effect on which consumer.
//
// # Role
//
// A consumer asks its [Ledger] for every delivery ([Ledger.Claim]), runs the
// handler if it got the event, and ends the claim: with its outgoing messages
// and the done mark ([Ledger.Complete]), with a failed attempt
// ([Ledger.Release]) or with a dead letter ([Ledger.Park]). [KV] keeps the marks
// in a JetStream KV bucket and is the default; [Partitions] has one owner for each
// part of the keys, and makes its steps and a page of their events one atomic batch;
// [Memory] keeps marks in the process, for tests without a server. outbox.Ledger
// keeps them in the service's own database and makes a step one transaction. All but
// Partitions are the same rules over different stores ([Rules], [Store]). Package
// deduptest proves every implementation, and says in one table where rules differ.
//
// A mark is one small record under <consumer>.<event key>:
//
//	             Claim                 Complete
//	(no mark) ──────────▶ claimed ─────────────────▶ done
//	                      ▲  │  │                 (retention)
//	       Claim, or the  │  │  │ Park
//	       lease has ended│  │  └────────▶ parked ──────────▶ discarded
//	                      │  │ Release      │      Discard  (retention)
//	                      waiting           │ Claim by a newer replay
//	                      ▲                 ▼
//	                                     claimed
//
// Every write gives the mark a lifetime of its own: none while parked, the
// retention otherwise, so abandoned marks vanish too. With Partitions only events that
// have failed, crashed or are parked have one, a record; pages tell of all others, and
// nothing is claimed: who owns the partition has the event.
//
// # Lifecycle
//
// [NewKV] and [NewPartitions] do no I/O. Their Prepare methods check at start that the
// server can keep the promise. A ledger has no goroutines but those of commits under
// way, and needs no closing.
//
// # Guarantees
//
//   - One owner: of all workers that claim an event, one gets it. The others
//     are told [Busy] and never that the event is done. Contention is not an error.
//     Rules without claims give an event to everybody who asks for the first
//     time, and let one of them commit; the others are told [ErrSettled].
//   - Atomic steps (Partitions): the end of the event, the outgoing messages and the
//     documents of a Complete are stored together or not at all.
//   - Fencing: a worker that was overtaken (stopped, paused, cut off for longer
//     than its lease, or its partition taken) can change nothing; each call that would
//     returns [ErrLeaseLost].
//   - No wall clock of a worker decides anything. A lease is judged by the time
//     the server stamped on its last renewal and the time the server tells now.
//     A live lease is never stolen, a dead worker's is taken over when it ends.
//   - A failed attempt is claimable at once. A crash costs the rest of the
//     lease, not the retention, and is counted ([Claim.Crashes]).
//   - Calls can be done again. A write whose acknowledgement got lost is found
//     and recognised, nothing is counted twice, and an outage is not taken for a
//     crash of the worker that lived through it.
//   - Fail closed: without the store there are errors, never claims.
//
// # Not guaranteed
//
//   - That a handler runs once. It runs again after a crash between its effect
//     and the done mark. What it emitted in between repeats with the same ids
//     (KV: emitting and marking are two writes), so the next consumer's ledger
//     recognises it; effects outside need an idempotency key.
//   - That emitted messages of one Complete appear together (KV): after an error
//     some may be stored, until a rerun completes them.
//   - That a handler runs once (Rules without claims): copies of an event that
//     arrive at the same time run side by side, and one takes effect.
//   - Anything about a copy that comes later than the retention after the
//     event's last change: it is new.
//   - Leases across a leader change between servers whose clocks differ: they
//     are off by that difference.
//
// # Size
//
// A done mark of [KV] is stored in about 190 bytes and costs about 430 bytes of
// server memory besides (its subject in the stream's index), for each replica:
//
//	memory ≈ 430 bytes × consumers × events a second × retention in seconds
//
// A hundred events a second, two consumers and the default retention of 24 h
// are 17 million marks: 7.4 GB of memory, 3.3 GB on disk. Shorten the retention
// where copies cannot come that late. When a mark ends, the server leaves a
// marker of similar size for the bucket's marker lifetime.
package dedup
