// Package gateway is the demo's payment provider: an HTTP server that stands
// for another company, and so shares no code with the services.
//
//	POST /charges  with Idempotency-Key: {"order_id","customer_id","amount","currency"}
//	               201 {"charge_id","order_id","amount","currency","status":"captured"}
//	               402 {"status":"declined","reason"}
//	               409 problem urn:farandole:gateway:voided: the key was voided; nothing is charged
//	POST /voids    with Idempotency-Key: {"charge_key","order_id"}
//	               201 {"refund_id","charge_id","order_id","amount","currency"}
//
// For operators ([Gateway.Admin]):
//
//	GET  /books    {"charges":[{"charge_id","order_id","customer_id","amount","currency","refunded","status"}]}
//	GET  /faults, PUT /faults  {"mode","rate","delay_ms","seed"}, see [Faults]
//
// Amounts are integer minor units. Other failures are problem documents (RFC 9457).
//
// # Guarantees
//
// One idempotency key is charged at most once, also if requests with it are
// repeated or arrive at the same time. The same key with the same body gets the
// same answer again, with the header "Idempotent-Replayed: true". The same key
// with another body gets 422. A key is the name of its charge, and a void changes what
// it answers; so the books are what remembers it, and not package idempotency.
//
// A void names a charge by its idempotency key. In one step it refunds what was
// charged under the key and makes the gateway refuse later charges under it. So
// whoever cancels an order need not know how a charge under way ends. To void a
// key that was never charged moves no money: refund_id, charge_id and currency
// are empty, amount is 0.
//
// The books are on disk before a request is answered: they are an append-only
// journal, synced before each answer and read at the start. Without a path they
// are in memory.
//
// # Known inputs
//
// A customer id that begins with "decline-" is always declined; with "flaky-",
// each key fails twice (500, then 503) and then works; with "slow-", a new
// charge is made at once and the answer comes after two seconds.
package gateway
