// Package idempotency makes the POST and PATCH handlers of an HTTP service safe to
// call again: a client that got no answer sends the same request once more, with the
// same Idempotency-Key, and gets the answer of the first one. It follows the IETF
// draft draft-ietf-httpapi-idempotency-key-header.
//
//	store := idempotency.NewSQL(db, outbox.Postgres)             // or OpenKV
//	once, err := idempotency.New(store, idempotency.Config{
//		Scope: func(r *http.Request) string { return tenantOf(r) },
//	})
//	mux.Handle("POST /transfers", once(transfers))
//
// # What a client gets
//
//   - The first request with a key: what the handler answers.
//   - The same request again: the stored answer, with Idempotent-Replayed: true.
//   - Another request with the key, that is another path, query or body: 422, type
//     urn:farandole:problem:idempotency-key-reused. Bodies in JSON are compared by
//     content: neither the order of members nor blanks make a difference.
//   - A request while the first one is under way: 409 with Retry-After, type
//     urn:farandole:problem:idempotency-key-outstanding.
//   - A request without a key, with two, or with one that is malformed: 400, type
//     urn:farandole:problem:idempotency-key-missing. The key may be a string of
//     RFC 8941, in quotes, as the draft has it, or bare: "k-1" and k-1 are one key.
//   - A body larger than Config.MaxBody: 413.
//
// A key is its scope's: two tenants may use the same one, and cannot find out that
// the other does. It is remembered for Config.TTL.
//
// GET, HEAD, OPTIONS, PUT and DELETE pass through: HTTP says that they can be sent
// again as they are.
//
// # Which answers are stored
//
// Those with a status below 500, but for 408, 425 and 429: these and errors of the
// server ask the client to try again, so they free the key. So does a panic. Put
// checks of a request that a client may mend under the same key before this
// middleware; what has not passed through it is not remembered. Set-Cookie, Date and
// the headers of the connection are not stored.
//
// An answer is held back until the handler returns and the answer is stored. A handler
// that streams finds no [http.Flusher] here. An answer that is larger than Config.MaxAnswer is sent on
// as it comes, and not kept: the request counts as carried out, and the same
// request gets 410, type urn:farandole:problem:answer-not-kept.
//
// # Not guaranteed
//
// A handler may run again for a request that has taken effect: after a crash between
// the effect and the storing of the answer, or when the store cannot be reached at that
// moment. The key is free for the same request when Config.Timeout is over, and for no
// other before the TTL is. So a handler makes its effects under the name that [ID]
// returns, which is the same each time: it is the row's primary key (ON CONFLICT DO
// NOTHING), or the Idempotency-Key of the next call.
//
// A handler that ignores the end of its context may run beside the next one after its
// timeout. Its own client gets its answer; the one that is stored is the other's.
package idempotency
