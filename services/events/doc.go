// Package events defines what the demo services say to each other: one struct
// and one definition an event type. It is all that they share.
//
// Money is integer minor units (cents) with an ISO 4217 currency.
package events
