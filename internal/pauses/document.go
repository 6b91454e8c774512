package pauses

import "time"

// Document is what is kept of one consumer. Its JSON is part of docs/contract.md.
type Document struct {
	// Pause is an operator's, nil for none. One whose time has passed is over.
	Pause *Pause `json:"pause,omitempty"`
	// Breakers are the fleet-wide breakers, by name. One that never opened is not there.
	Breakers map[string]Breaker `json:"breakers,omitempty"`
}

// SetBreaker keeps a breaker under its name.
func (d *Document) SetBreaker(name string, b Breaker) {
	if d.Breakers == nil {
		d.Breakers = map[string]Breaker{}
	}
	d.Breakers[name] = b
}

// Pause is what an operator has asked for.
type Pause struct {
	Until time.Time `json:"until"`
	At    time.Time `json:"at"` // when it was asked for
	By    string    `json:"by"` // who asked, as in "ops@host"
	Why   string    `json:"why,omitempty"`
}

// Breaker is the state that all processes of a consumer share of one breaker.
type Breaker struct {
	State State `json:"state"`
	// Until is of an open breaker when it may be probed, and of a half-open one when
	// its prober counts as dead. Zero with Forced: it stays open until somebody closes it.
	Until time.Time `json:"until,omitzero"`
	// Forced says that an operator has set the state.
	Forced bool `json:"forced,omitempty"`
	// Prober is the process that probes, while the breaker is half-open.
	Prober string `json:"prober,omitempty"`
	// Proved is how many probes in a row have succeeded since the breaker was open last.
	Proved int `json:"proved,omitempty"`
	// Opened is how often the breaker has opened from closed.
	Opened uint64 `json:"opened"`
	// Term counts the changes of this breaker, renewals of a prober included.
	Term uint64    `json:"term"`
	At   time.Time `json:"at"` // of the last change of State
	By   string    `json:"by"` // who changed it
	Why  string    `json:"why,omitempty"`
}

// State of a breaker.
type State string

// The states.
const (
	Closed   State = "closed"
	Open     State = "open"
	HalfOpen State = "half-open"
)

// HeldUntil is until when the server delivers nothing to the consumer: the end of the
// operator's pause, or of the open breaker that lasts longest. It may have passed; it
// is zero if nothing holds the consumer up. For a breaker that an operator has opened
// the server is not asked: the operator may close it when no process is left to take that back.
func (d Document) HeldUntil() (until time.Time) {
	if d.Pause != nil {
		until = d.Pause.Until
	}
	for _, b := range d.Breakers {
		if b.State == Open && !b.Forced && b.Until.After(until) {
			until = b.Until
		}
	}
	return until
}
