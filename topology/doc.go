// Package topology brings the server to the streams and buckets a system wants.
//
// # Role
//
// [New] says what is wanted: the streams of events, timers and dead letters, and
// the KV buckets. [NewPlan] compares it with what exists and changes nothing;
// [Apply] carries the plan out; [Provision] does both.
//
// # Guarantees
//
//   - No plan loses data: what would is refused, with a reason, and then nothing
//     is changed at all.
//   - Several services may provision the same topology at once.
//   - [Apply] checks that the server has done what it was told: a server that
//     does not know a setting ignores it without a word.
//
// # Not guaranteed
//
//   - That two topologies of one server fit together: a subject that belongs to
//     another stream is refused.
package topology
