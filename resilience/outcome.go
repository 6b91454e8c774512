package resilience

// Outcome is what the end of a call says about the dependency.
type Outcome int

const (
	// Neutral says nothing: the caller gave up, or the call did not get there. A
	// probe's permit is free again.
	Neutral Outcome = iota
	// Success says that the dependency works. That it refused the request for a
	// reason of the request's own (a 4xx status, a business error) is an answer, too.
	Success
	// Failure says that the dependency does not work: no answer in time, a broken
	// connection, a 5xx status, 429.
	Failure
)

// String returns the outcome's metric label.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Failure:
		return "failure"
	default:
		return "neutral"
	}
}
