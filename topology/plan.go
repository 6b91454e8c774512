package topology

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// What a [Step] does.
const (
	ActionCreate = "create" // the stream does not exist
	ActionUpdate = "update" // settings differ and can be changed without losing anything
	ActionKeep   = "keep"   // nothing has to change
	ActionRefuse = "refuse" // a setting differs that cannot be changed safely
)

// Plan is the difference between wanted and existing topology.
type Plan struct {
	Steps []Step `json:"steps"`
}

// Step is what to do about one stream.
type Step struct {
	Stream  string   `json:"stream"`
	Action  string   `json:"action"`
	Changes []Change `json:"changes,omitempty"`

	want, apply jetstream.StreamConfig // what was asked for, and what to tell the server
}

// Change is one setting that differs.
type Change struct {
	Setting string `json:"setting"`
	Have    string `json:"have"`
	Want    string `json:"want"`
	// Safe is false when the change is refused.
	Safe bool `json:"safe"`
	// Kept is true when the stream has more than is wanted (a longer age, more
	// replicas): it stays as it is.
	Kept bool `json:"kept,omitempty"`
	// Why says why a change is refused and what to do, or why a setting is kept.
	Why string `json:"why,omitempty"`
}

// Changed reports whether applying the plan changes anything.
func (p Plan) Changed() bool {
	for _, s := range p.Steps {
		if s.Action == ActionCreate || s.Action == ActionUpdate {
			return true
		}
	}
	return false
}

// Refused are the steps that cannot be carried out. If there are any,
// [Apply] carries out none.
func (p Plan) Refused() []Step {
	var refused []Step
	for _, s := range p.Steps {
		if s.Action == ActionRefuse {
			refused = append(refused, s)
		}
	}
	return refused
}

// Err is nil, or a [*Error] when the plan has refused steps.
func (p Plan) Err() error {
	if refused := p.Refused(); len(refused) > 0 {
		return &Error{Refused: refused}
	}
	return nil
}

// String renders the plan for people, a line a step and a line a change.
func (p Plan) String() string {
	var sb strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&sb, "%-6s  %s\n", s.Action, s.Stream)
		for _, c := range s.Changes {
			fmt.Fprintf(&sb, "        %s\n", c)
		}
	}
	return sb.String()
}

// String is one line: what differs and what becomes of it.
func (c Change) String() string {
	verdict := ""
	switch {
	case c.Kept:
		verdict = " (kept)"
	case !c.Safe:
		verdict = " (refused)"
	}
	line := fmt.Sprintf("%s: have %s, want %s%s", c.Setting, c.Have, c.Want, verdict)
	if c.Why != "" {
		line += ": " + c.Why
	}
	return line
}

// Error lists everything that stands against a topology. It matches
// [ErrTopology].
type Error struct {
	// Refused are the refused steps; the changes at fault are not Safe.
	Refused []Step
}

// Error lists every refused change on a line of its own.
func (e *Error) Error() string {
	var sb strings.Builder
	sb.WriteString(ErrTopology.Error() + " refused, nothing was changed:")
	for _, s := range e.Refused {
		for _, c := range s.Changes {
			if !c.Safe {
				fmt.Fprintf(&sb, "\n  stream %s: %s", s.Stream, c)
			}
		}
	}
	return sb.String()
}

// Unwrap makes the error match [ErrTopology].
func (e *Error) Unwrap() error { return ErrTopology }

// refuse adds a reason why a step cannot be carried out.
func (s *Step) refuse(c Change) {
	c.Safe = false
	s.Changes = append(s.Changes, c)
	s.Action = ActionRefuse
}
