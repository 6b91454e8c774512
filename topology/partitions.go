package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// The event stream's transform puts the partition of its key into the subject of
// an event. What is stored already keeps its subject. So partitions are added only
// when no durable would pass over the new subjects, and their number is changed
// only when nobody has anything to do: a consumer that owns partition 17 would
// never see the events of a key that was in 17 and is in 40 from now on.

// settingPartitions is the setting's name in plans.
const settingPartitions = "partitions"

// What a page says of a partition: its kind, and up to which sequence of the event
// stream all is done (docs/contract.md).
const (
	headerPage   = "Farandole-Page"
	headerFloor  = "Farandole-Floor"
	headerOwner  = "Farandole-Owner"
	pageFarewell = "farewell"
)

// partitionsOf reads how many partitions a transform makes of the subjects in
// source; ok is false if it makes none, or is nil.
func partitionsOf(t *jetstream.SubjectTransformConfig, source string) (partitions int, ok bool) {
	if t == nil || t.Source != source {
		return 0, false
	}
	return event.PartitionsIn(t.Destination)
}

func showPartitions(t *jetstream.SubjectTransformConfig, source string) string {
	switch partitions, ok := partitionsOf(t, source); {
	case ok:
		return strconv.Itoa(partitions)
	case t == nil:
		return "none"
	default:
		return fmt.Sprintf("a transform of %s to %s", t.Source, t.Destination)
	}
}

// partitions brings the transform to what is wanted. One that makes the same
// partitions and folds keys besides stays.
func (c *comparison) partitions() {
	want := c.want.SubjectTransform
	if want == nil {
		return
	}
	if have, wanted := showPartitions(c.have.SubjectTransform, want.Source), showPartitions(want, want.Source); have != wanted {
		c.next.SubjectTransform = want
		c.safe(settingPartitions, have, wanted)
	}
}

// keepPartitions compares nothing: the stream stays as it is, and the plan says so
// if it has no partitions.
func keepPartitions(step *Step, have jetstream.StreamConfig, wanted *jetstream.SubjectTransformConfig) {
	if _, ok := partitionsOf(have.SubjectTransform, wanted.Source); !ok {
		step.Changes = append(step.Changes, Change{
			Setting: settingPartitions, Have: showPartitions(have.SubjectTransform, wanted.Source), Want: showPartitions(wanted, wanted.Source), Safe: true, Kept: true,
			Why: "when all services run this version, add them with `farandole topology apply --partitions N`",
		})
	}
}

// planPartitions refuses a change of the partitions that would lose something.
func planPartitions(ctx context.Context, b *bus.Bus, step *Step, have jetstream.StreamConfig) error {
	i := slices.IndexFunc(step.Changes, func(c Change) bool { return c.Setting == settingPartitions && c.Safe && !c.Kept })
	if i < 0 {
		return nil
	}
	source, destination := step.want.SubjectTransform.Source, step.want.SubjectTransform.Destination
	_, ok := partitionsOf(have.SubjectTransform, source)
	var why string
	var err error
	switch {
	case ok:
		why, err = underWay(ctx, b)
	case have.SubjectTransform != nil:
		why = "the stream has a transform of its own: remove it, or set it to " + destination +
			" by hand (`nats stream edit`); with {{partition(N,4)}} in place of the last token keys are folded"
	default:
		why, err = narrowDurables(ctx, b)
	}
	if why != "" {
		step.Changes[i].Safe, step.Changes[i].Why = false, why
		step.Action = ActionRefuse
	}
	return err
}

// checkPartitions looks again, right before a plan is carried out, at what stands
// against a change of the partitions.
func checkPartitions(ctx context.Context, b *bus.Bus, p Plan) error {
	for _, s := range p.Steps {
		if s.Stream != b.Names().EventsStream() || s.Action != ActionUpdate {
			continue
		}
		have, err := streamConfig(ctx, b, s.Stream)
		if err == nil {
			s.Changes = slices.Clone(s.Changes)
			err = planPartitions(ctx, b, &s, have)
		}
		if err != nil {
			return fmt.Errorf("topology: update stream %s: %w", s.Stream, err)
		}
		if s.Action == ActionRefuse {
			return &Error{Refused: []Step{s}}
		}
	}
	return nil
}

// durables are those of the event stream.
func durables(ctx context.Context, b *bus.Bus) ([]*jetstream.ConsumerInfo, error) {
	var found []*jetstream.ConsumerInfo
	name := b.Names().EventsStream()
	err := ask(ctx, b, "CONSUMER.LIST."+name, func(ctx context.Context) error {
		stream, err := b.JetStream().Stream(ctx, name)
		if err != nil {
			return err
		}
		found = nil
		all := stream.ListConsumers(ctx)
		for info := range all.Info() {
			if info.Config.Durable != "" {
				found = append(found, info)
			}
		}
		return all.Err()
	})
	return found, err
}

// narrowDurables says which durables would not get events with a partition in
// their subject; "" if there are none.
func narrowDurables(ctx context.Context, b *bus.Bus) (string, error) {
	found, err := durables(ctx, b)
	if err != nil {
		return "", err
	}
	root := b.Names().Root("events.")
	tokens := strings.Count(root, ".") + 4
	for _, info := range found {
		for _, filter := range append(info.Config.FilterSubjects, info.Config.FilterSubject) {
			if strings.HasPrefix(filter, root) && !strings.HasSuffix(filter, ">") && strings.Count(filter, ".")+1 == tokens {
				return fmt.Sprintf("durable %s takes %s, and would pass over %s: start its consumer with this version first, which changes the filter; "+
					"if the durable is not Farandole's, change it by hand",
					info.Name, filter, filter[:strings.LastIndexByte(filter, '.')]+".*.*"), nil
			}
		}
	}
	return "", nil
}

// howToChange ends each reason why the number of partitions cannot be changed.
const howToChange = ": stop what publishes, wait until the consumers have handled all, stop these, and apply again"

// underWay says what has to be done before the number of partitions is changed; "" if
// nothing is left.
func underWay(ctx context.Context, b *bus.Bus) (string, error) {
	found, err := durables(ctx, b)
	if err != nil {
		return "", err
	}
	for _, info := range found {
		if info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Sprintf("durable %s has %d events pending and %d unacknowledged", info.Name, info.NumPending, info.NumAckPending) + howToChange, nil
		}
	}
	retries, err := subjectsOn(ctx, b, b.Names().TimersStream(), b.Names().TimersFilter("", "retry"))
	if err != nil {
		return "", err
	}
	if len(retries) > 0 {
		return fmt.Sprintf("%d retries wait for their time, among them %s", len(retries), retries[0]) + howToChange, nil
	}
	return ownedPartition(ctx, b)
}

// ownedPartition says which partition has an owner, or events that its last owner
// has left; "" if there is none.
func ownedPartition(ctx context.Context, b *bus.Bus) (string, error) {
	pages, err := subjectsOn(ctx, b, b.Names().EventsStream(), b.Names().Root("ledger.*.*.page"))
	if err != nil {
		return "", err
	}
	for _, subject := range pages {
		tokens := strings.Split(strings.TrimPrefix(subject, b.Names().Root("ledger.")), ".")
		consumer, partition := event.Consumer(tokens[0]), tokens[1]
		page, err := b.Latest(ctx, b.Names().EventsStream(), subject)
		if page == nil || err != nil {
			return "", err
		}
		if page.Header.Get(headerPage) != pageFarewell {
			return fmt.Sprintf("%s owns partition %s of consumer %s, or died of it", page.Header.Get(headerOwner), partition, consumer) + howToChange, nil
		}
		floor, err := strconv.ParseUint(page.Header.Get(headerFloor), 10, 64)
		if err != nil {
			return "", fmt.Errorf("page %d on %s: header %s: %w", page.Sequence, subject, headerFloor, err)
		}
		filters, err := partitionFilters(ctx, b, consumer, partition)
		if err != nil {
			return "", err
		}
		for _, filter := range filters {
			left, err := next(ctx, b, floor+1, filter)
			if err != nil {
				return "", err
			}
			if left != nil {
				return fmt.Sprintf("consumer %s has not handled event %d on %s", consumer, left.Sequence, left.Subject) + howToChange, nil
			}
		}
	}
	return "", nil
}

// partitionFilters are the subjects of one partition that a consumer has ever taken.
func partitionFilters(ctx context.Context, b *bus.Bus, c event.Consumer, partition string) ([]string, error) {
	filters := []string{b.Names().Root("redrive." + string(c) + ".*.*.*." + partition + ".*")}
	known, err := b.Latest(ctx, b.Names().EventsStream(), b.Names().LedgerSubject(c, "durable"))
	if known == nil || err != nil {
		return append(filters, b.Names().Root("events.*.*.*."+partition+".*")), err
	}
	var mark struct{ Subjects []string }
	if err := json.Unmarshal(known.Data, &mark); err != nil {
		return nil, fmt.Errorf("message %d on %s: %w", known.Sequence, known.Subject, err)
	}
	for _, s := range mark.Subjects {
		_, filter, _ := strings.Cut(s, " ")
		if t, ok := strings.CutSuffix(filter, ".>"); ok && strings.HasPrefix(filter, b.Names().Root("events.")) {
			filters = append(filters, t+"."+partition+".*")
		}
	}
	if len(filters) == 1 { // the mark only says where the consumer began
		filters = append(filters, b.Names().Root("events.*.*.*."+partition+".*"))
	}
	return filters, nil
}

// next returns the first message on a filter from a sequence on, nil if there is none.
func next(ctx context.Context, b *bus.Bus, sequence uint64, filter string) (m *jetstream.RawStreamMsg, err error) {
	name := b.Names().EventsStream()
	err = ask(ctx, b, "STREAM.MSG.GET."+name, func(ctx context.Context) error {
		stream, err := b.JetStream().Stream(ctx, name)
		if err != nil {
			return err
		}
		m, err = stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(filter))
		return err
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}

// subjectsOn returns the subjects of a stream that match a filter, sorted. A stream
// that is not there has none.
func subjectsOn(ctx context.Context, b *bus.Bus, stream, filter string) (subjects []string, err error) {
	err = ask(ctx, b, "STREAM.INFO."+stream, func(ctx context.Context) error {
		s, err := b.JetStream().Stream(ctx, stream)
		if err != nil {
			return err
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return err
		}
		subjects = subjects[:0]
		for subject := range info.State.Subjects {
			subjects = append(subjects, subject)
		}
		slices.Sort(subjects)
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	return subjects, err
}
