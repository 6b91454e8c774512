// Package events defines the events that the demo's services exchange: for each
// event type one struct with its data and one definition. The services share
// nothing else.
//
// Money is integer minor units (cents) with an ISO 4217 currency.
package events
