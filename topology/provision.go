package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// provisionRounds bounds how often Provision plans again because somebody else
// changed the same streams in between.
const provisionRounds = 5

// errStale is returned when a stream was created or removed since the plan was made.
var errStale = errors.New("changed meanwhile")

// NewPlan compares what exists with what is wanted and changes nothing. A plan
// with refused steps is no error; see [Plan.Err]. While a stream or the whole of
// JetStream has no leader Plan waits, see [bus.Bus.Await]. Errors match [bus.ErrDenied]
// when this user may not look at streams, or [bus.ErrUnavailable].
func NewPlan(ctx context.Context, b *bus.Bus, t Topology) (Plan, error) {
	var p Plan
	for _, want := range t.Streams {
		var step Step
		err := b.Await(ctx, func(ctx context.Context) (err error) {
			step, err = planStream(ctx, b, want, t.anyPartitions)
			return err
		})
		if err != nil {
			return Plan{}, fmt.Errorf("topology: plan stream %s: %w", want.Name, err)
		}
		for _, c := range impossible(b, want) {
			step.refuse(c)
		}
		p.Steps = append(p.Steps, step)
	}
	refuseCollisions(p.Steps)
	return p, nil
}

// Apply carries out a plan. When the plan has refused steps it changes nothing
// and returns a [*Error]. It returns an error matching [ErrTopology]
// also when the server did not do what it was told. It waits like [NewPlan].
func Apply(ctx context.Context, b *bus.Bus, p Plan) error {
	if err := p.Err(); err != nil {
		return err
	}
	if err := checkPartitions(ctx, b, p); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if err := b.Await(ctx, func(ctx context.Context) error { return applyStep(ctx, b, s) }); err != nil {
			return fmt.Errorf("topology: %s stream %s: %w", s.Action, s.Stream, err)
		}
	}
	if slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Stream == b.Names().EventsStream() && s.Action == ActionUpdate }) {
		return moveTimers(ctx, b)
	}
	return nil
}

// Provision is [NewPlan] and [Apply]. Several services may provision the
// same topology at once. Nothing is changed when anything is refused; the
// plan is returned in that case too.
func Provision(ctx context.Context, b *bus.Bus, t Topology) (Plan, error) {
	for round := 1; ; round++ {
		p, err := NewPlan(ctx, b, t)
		if err != nil {
			return Plan{}, err
		}
		err = Apply(ctx, b, p)
		if err == nil || round == provisionRounds || !errors.Is(err, errStale) {
			return p, err
		}
	}
}

func planStream(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig, anyPartitions bool) (Step, error) {
	have, err := streamConfig(ctx, b, want.Name)
	var step Step
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		step = Step{Stream: want.Name, Action: ActionCreate, want: want, apply: want}
	case err != nil:
		return Step{}, err
	default:
		partitions := want.SubjectTransform
		if anyPartitions {
			want.SubjectTransform = nil
		}
		step = compare(have, want)
		if want.Name == b.Names().EventsStream() {
			if anyPartitions {
				keepPartitions(&step, have, partitions)
			}
			if err := errors.Join(planPartitions(ctx, b, &step, have), planTimers(ctx, b, &step)); err != nil {
				return Step{}, err
			}
		}
	}
	for _, subject := range missingSubjects(have, want) {
		if err := refuseOverlaps(ctx, b, &step, subject); err != nil {
			return Step{}, err
		}
	}
	return step, nil
}

// refuseOverlaps refuses a subject that another stream stores already.
func refuseOverlaps(ctx context.Context, b *bus.Bus, step *Step, subject string) error {
	var others []string
	err := ask(ctx, b, "STREAM.NAMES", func(ctx context.Context) error {
		names := b.JetStream().StreamNames(ctx, jetstream.WithStreamListSubject(subject))
		for name := range names.Name() {
			if name != step.Stream {
				others = append(others, name)
			}
		}
		return names.Err()
	})
	if err != nil {
		return err
	}
	for _, other := range others {
		have, err := streamConfig(ctx, b, other)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		step.refuse(overlap(subject, other, colliding(have.Subjects, subject)))
	}
	return nil
}

func streamConfig(ctx context.Context, b *bus.Bus, name string) (jetstream.StreamConfig, error) {
	var cfg jetstream.StreamConfig
	err := ask(ctx, b, "STREAM.INFO."+name, func(ctx context.Context) error {
		s, err := b.JetStream().Stream(ctx, name)
		if err == nil {
			cfg = s.CachedInfo().Config
		}
		return err
	})
	return cfg, err
}

// applyStep tells the server, and checks that it did as told: a server that
// does not know a setting ignores it.
func applyStep(ctx context.Context, b *bus.Bus, s Step) error {
	var api string
	var do func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)
	switch s.Action {
	case ActionCreate:
		api, do = "STREAM.CREATE."+s.Stream, b.JetStream().CreateStream
	case ActionUpdate:
		api, do = "STREAM.UPDATE."+s.Stream, b.JetStream().UpdateStream
	default:
		return nil
	}
	var made jetstream.StreamConfig
	err := ask(ctx, b, api, func(ctx context.Context) error {
		stream, err := do(ctx, s.apply)
		if err == nil {
			made = stream.CachedInfo().Config
		}
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse), errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", errStale, err)
	case err != nil:
		return err
	}
	if left := compare(made, s.want); left.Action != ActionKeep {
		return fmt.Errorf("%w: server %s did not take it over: %s", ErrTopology, b.Conn().ConnectedServerVersion(), left.Changes[0])
	}
	return nil
}

// refuseCollisions refuses wanted streams that want each other's subjects.
func refuseCollisions(steps []Step) {
	for i := range steps {
		for j := range i {
			for _, subject := range steps[i].want.Subjects {
				if theirs := colliding(steps[j].want.Subjects, subject); len(theirs) > 0 {
					steps[i].refuse(overlap(subject, steps[j].Stream, theirs))
				}
			}
		}
	}
}

func colliding(subjects []string, subject string) []string {
	var found []string
	for _, s := range subjects {
		if event.SubjectsCollide(s, subject) {
			found = append(found, s)
		}
	}
	return found
}

func overlap(subject, other string, theirs []string) Change {
	return Change{
		Setting: "subjects",
		Have:    fmt.Sprintf("%s in stream %s", strings.Join(theirs, " "), other),
		Want:    subject,
		Why:     "a subject can be in one stream only: change that stream's subjects, or choose another prefix",
	}
}

// features are settings that older servers silently ignore.
var features = []struct {
	setting      string
	major, minor int
	wanted       func(jetstream.StreamConfig) bool
}{
	{"allow_msg_ttl", 2, 11, func(c jetstream.StreamConfig) bool { return c.AllowMsgTTL }},
	{"subject_delete_marker_ttl", 2, 11, func(c jetstream.StreamConfig) bool { return c.SubjectDeleteMarkerTTL > 0 }},
	{"allow_atomic", 2, 12, func(c jetstream.StreamConfig) bool { return c.AllowAtomicPublish }},
	{"allow_msg_schedules", 2, 12, func(c jetstream.StreamConfig) bool { return c.AllowMsgSchedules }},
}

// impossible is what this server cannot do, or what contradicts itself.
func impossible(b *bus.Bus, want jetstream.StreamConfig) []Change {
	changes := unsupported(b.Conn().ConnectedServerVersion(), want)
	if want.Replicas > 1 && b.Conn().ConnectedClusterName() == "" {
		changes = append(changes, Change{
			Setting: "replicas", Have: "one server", Want: show(want.Replicas),
			Why: "replicas need a cluster: connect to one, or set Replicas to 1",
		})
	}
	if t := want.SubjectTransform; t != nil {
		if _, ok := partitionsOf(t, t.Source); !ok {
			changes = append(changes, Change{
				Setting: settingPartitions, Have: t.Destination, Want: fmt.Sprintf("1 to %d", event.MaxPartitions),
				Why: "so many cannot be: choose another number of Partitions",
			})
		}
	}
	if want.MaxAge > 0 && want.Duplicates > want.MaxAge {
		changes = append(changes, Change{
			Setting: "duplicate_window", Have: "max_age " + show(want.MaxAge), Want: show(want.Duplicates),
			Why: "a message id cannot be remembered longer than its message: raise EventsMaxAge or lower Duplicates",
		})
	}
	return changes
}

func unsupported(version string, want jetstream.StreamConfig) []Change {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return nil // a development build: applyStep finds out
	}
	var changes []Change
	for _, f := range features {
		if f.wanted(want) && (major < f.major || major == f.major && minor < f.minor) {
			changes = append(changes, Change{
				Setting: f.setting, Have: "nats-server " + version, Want: "true",
				Why: fmt.Sprintf("needs nats-server %d.%d or later: upgrade the server", f.major, f.minor),
			})
		}
	}
	return changes
}
