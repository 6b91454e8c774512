package idempotency

import (
	"context"
	"net/http"
	"time"
)

// Store keeps keys and answers. [KV] and [SQL] are stores. All processes of a service
// share one; its clock counts, not theirs.
type Store interface {
	// Begin claims c.Key for c.Owner. It returns nil if that has worked, else what is
	// in the way. A key is free if it is unknown, released, or c.TTL has passed since
	// it was claimed or its answer stored; and for the same fingerprint when it has no answer and
	// its lease is over.
	Begin(ctx context.Context, c Claim) (*Record, error)
	// Complete stores the answer. The error matches [ErrLost] if the owner has the
	// key no more.
	Complete(ctx context.Context, c Claim, a Answer) error
	// Release frees the key. The error matches [ErrLost] likewise.
	Release(ctx context.Context, c Claim) error
}

// Claim is one request's.
type Claim struct {
	Key         string        // a hash of scope and Idempotency-Key, [a-z2-7]
	Fingerprint string        // tells the request from others
	Owner       string        // tells this run of the request from others
	Lease       time.Duration // how long the request may be under way
	TTL         time.Duration // how long the key is remembered
}

// Record is what a store holds under a key.
type Record struct {
	Fingerprint string  `json:"fingerprint"`
	Owner       string  `json:"owner,omitempty"` // empty when it was released
	Until       int64   `json:"until"`           // when the lease is over, in ms since 1970
	Answer      *Answer `json:"answer,omitempty"`
}

// Answer is a stored HTTP response.
type Answer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
	// TooLarge says that the body was not kept.
	TooLarge bool `json:"too_large,omitempty"`
}
