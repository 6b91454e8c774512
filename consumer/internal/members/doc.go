// Package members keeps the list of a consumer's processes, and says which of
// them owns which partitions. It is for balance and speed alone: the fence in
// the ledger is what keeps two processes from one partition, so a list that is
// old or wrong for a while costs time and nothing else.
//
// Each process is a [Group]. While [Group.Run] runs it writes its key
// <consumer>.<id> in the KV bucket "members" once a second, and follows the keys
// of the others. All of them compute the same owners from the same list (assign).
//
// Who has left is told by its key, which it deletes. Who has died is told by the
// stream's own time: a member is gone when the stream has stored something that
// is 4 s later than the member's last renewal. No local clock counts, so a process
// that was frozen does not take the others for dead when it wakes. A time in which
// nobody could write does not count either, so nothing moves because NATS was away.
package members
