package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// comparison collects how an existing stream differs from a wanted one. Its
// next configuration starts as what exists, so that whatever is not ours to
// decide (placement, description) stays.
type comparison struct {
	have, want, next jetstream.StreamConfig
	changes          []Change
}

// compare returns the step that brings a stream from have to want.
func compare(have, want jetstream.StreamConfig) Step {
	c := &comparison{have: have, want: want, next: have}
	c.next.Subjects = slices.Clone(have.Subjects)

	c.unusable()
	c.fixed("storage", have.Storage, want.Storage, "the server cannot change it: copy the messages to a new stream")
	c.fixed("retention", have.Retention, want.Retention, "messages would be deleted once acknowledged or kept for ever: copy the messages to a new stream")
	c.subjects()
	c.discard()

	limit(c, "max_age", &c.next.MaxAge, want.MaxAge)
	limit(c, "max_msgs", &c.next.MaxMsgs, want.MaxMsgs)
	limit(c, "max_bytes", &c.next.MaxBytes, want.MaxBytes)
	limit(c, "max_msgs_per_subject", &c.next.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	limit(c, "max_msg_size", &c.next.MaxMsgSize, want.MaxMsgSize)
	limit(c, "max_consumers", &c.next.MaxConsumers, want.MaxConsumers)

	atLeast(c, "replicas", &c.next.Replicas, want.Replicas)
	atLeast(c, "duplicate_window", &c.next.Duplicates, want.Duplicates)
	atLeast(c, "subject_delete_marker_ttl", &c.next.SubjectDeleteMarkerTTL, want.SubjectDeleteMarkerTTL)

	c.allow("allow_atomic", &c.next.AllowAtomicPublish, want.AllowAtomicPublish)
	c.allow("allow_msg_ttl", &c.next.AllowMsgTTL, want.AllowMsgTTL)
	c.allow("allow_msg_schedules", &c.next.AllowMsgSchedules, want.AllowMsgSchedules)
	c.rollup()
	c.sources()
	c.partitions()
	c.allow("allow_direct", &c.next.AllowDirect, want.AllowDirect)
	c.deny("deny_delete", &c.next.DenyDelete, want.DenyDelete)
	c.deny("deny_purge", &c.next.DenyPurge, want.DenyPurge)

	return Step{Stream: want.Name, Action: c.action(), Changes: c.changes, want: want, apply: c.next}
}

func (c *comparison) action() string {
	action := ActionKeep
	for _, change := range c.changes {
		switch {
		case !change.Safe:
			return ActionRefuse
		case !change.Kept:
			action = ActionUpdate
		}
	}
	return action
}

// unusable refuses streams of a kind that cannot hold what is wanted.
func (c *comparison) unusable() {
	const elsewhere = "rename or remove that stream, or choose another prefix"
	if c.have.Mirror != nil {
		c.refuse("mirror", "mirror of "+c.have.Mirror.Name, "none", elsewhere)
	}
	if c.have.Sealed {
		c.refuse("sealed", "true", "false", "the server cannot unseal it: "+elsewhere)
	}
	if c.have.AllowMsgCounter {
		c.refuse("allow_msg_counter", "true", "false", "it stores counters only: "+elsewhere)
	}
	if c.have.PersistMode != c.want.PersistMode {
		c.refuse("persist_mode", lower(c.have.PersistMode), lower(c.want.PersistMode), "the server cannot change it, and acknowledged messages could be lost: copy the messages to a new stream")
	}
	if len(c.have.Sources) > 0 && c.want.AllowMsgSchedules {
		c.refuse("sources", fmt.Sprintf("%d", len(c.have.Sources)), "none", "the server allows no scheduled messages in a stream with sources: remove them")
	}
	if c.have.NoAck && !c.want.NoAck {
		c.next.NoAck = false
		c.safe("no_ack", "true", "false")
	}
}

// rollup switches roll-ups on where they are wanted, and off elsewhere: one of
// "all", which any publisher can send, erases the stream.
func (c *comparison) rollup() {
	have, want := c.have.AllowRollup, c.want.AllowRollup
	if have != want {
		c.next.AllowRollup = want
		c.safe("allow_rollup_hdrs", strconv.FormatBool(have), strconv.FormatBool(want))
	}
}

// sources adds those that are missing. The server allows none, and no end of
// roll-ups, in a stream that once allowed schedules.
func (c *comparison) sources() {
	if len(c.want.Sources) > 0 && c.have.AllowMsgSchedules {
		c.refuse("allow_msg_schedules", "true", "false", "any publisher can erase such a stream, and the server cannot switch it off: "+
			"make the stream anew with all that is in it; docs/timers.md says how, in three commands")
		return
	}
	for _, want := range c.want.Sources {
		if slices.ContainsFunc(c.have.Sources, func(have *jetstream.StreamSource) bool {
			return have.Name == want.Name && slices.Equal(have.SubjectTransforms, want.SubjectTransforms)
		}) {
			continue
		}
		c.next.Sources = slices.DeleteFunc(slices.Clone(c.next.Sources), func(s *jetstream.StreamSource) bool { return s.Name == want.Name })
		c.next.Sources = append(c.next.Sources, want)
		c.safe("sources", showSources(c.have.Sources), showSources(c.next.Sources))
	}
}

func showSources(sources []*jetstream.StreamSource) string {
	if len(sources) == 0 {
		return "none"
	}
	names := make([]string, len(sources))
	for i, s := range sources {
		names[i] = s.Name
	}
	return strings.Join(names, " ")
}

// subjects adds what is missing; a wanted subject takes the place of those it covers.
func (c *comparison) subjects() {
	missing := missingSubjects(c.have, c.want)
	if len(missing) == 0 {
		return
	}
	for _, subject := range missing {
		c.next.Subjects = slices.DeleteFunc(c.next.Subjects, func(s string) bool { return event.SubjectCovers(subject, s) })
	}
	c.next.Subjects = append(c.next.Subjects, missing...)
	c.safe("subjects", strings.Join(c.have.Subjects, " "), strings.Join(c.next.Subjects, " "))
}

// missingSubjects are the wanted subjects that the stream does not store.
func missingSubjects(have, want jetstream.StreamConfig) []string {
	var missing []string
	for _, subject := range want.Subjects {
		if !slices.ContainsFunc(have.Subjects, func(s string) bool { return event.SubjectCovers(s, subject) }) {
			missing = append(missing, subject)
		}
	}
	return missing
}

// discard makes a full stream refuse rather than evict where that is wanted.
// The other way round the stricter setting is kept if it can be.
func (c *comparison) discard() {
	if c.have.DiscardNewPerSubject && !c.want.DiscardNewPerSubject {
		c.next.DiscardNewPerSubject = false
		c.safe("discard_new_per_subject", "true", "false")
	}
	have, want := c.have.Discard, c.want.Discard
	switch {
	case have == want:
	case want == jetstream.DiscardNew:
		c.next.Discard = want
		c.safe("discard", lower(have), lower(want))
	case c.want.AllowMsgSchedules:
		c.refuse("discard", lower(have), lower(want), "the server allows no scheduled messages with it, and changing it lets a full stream evict old messages: do it by hand if that is what you want")
	default:
		c.keep("discard", lower(have), lower(want), "a full stream refuses messages instead of evicting old ones")
	}
}

func (c *comparison) fixed(setting string, have, want fmt.Stringer, why string) {
	if have != want {
		c.refuse(setting, lower(have), lower(want), why)
	}
}

func (c *comparison) allow(setting string, next *bool, want bool) {
	if want && !*next {
		*next = true
		c.safe(setting, "false", "true")
	}
}

// deny settings can be switched on but never off.
func (c *comparison) deny(setting string, next *bool, want bool) {
	switch {
	case want == *next:
	case want:
		*next = true
		c.safe(setting, "false", "true")
	default:
		c.refuse(setting, "true", "false", "the server cannot switch it off: copy the messages to a new stream")
	}
}

type number interface {
	~int | ~int32 | ~int64
}

// limit raises a limit; 0 and below mean unlimited. A higher one is kept,
// since lowering it would delete messages.
func limit[T number](c *comparison, setting string, next *T, want T) {
	have := *next
	switch {
	case have <= 0 && want <= 0, have == want:
	case want <= 0, have > 0 && have < want:
		*next = want
		c.safe(setting, showLimit(have), showLimit(want))
	default:
		c.keep(setting, showLimit(have), showLimit(want), "lowering it deletes messages: do it by hand if that is what you want")
	}
}

// atLeast raises a setting; a higher one is kept.
func atLeast[T number](c *comparison, setting string, next *T, want T) {
	have := *next
	switch {
	case have < want:
		*next = want
		c.safe(setting, show(have), show(want))
	case have > want && want > 0:
		c.keep(setting, show(have), show(want), "")
	}
}

func (c *comparison) safe(setting, have, want string) {
	c.changes = append(c.changes, Change{Setting: setting, Have: have, Want: want, Safe: true})
}

func (c *comparison) keep(setting, have, want, why string) {
	c.changes = append(c.changes, Change{Setting: setting, Have: have, Want: want, Safe: true, Kept: true, Why: why})
}

func (c *comparison) refuse(setting, have, want, why string) {
	c.changes = append(c.changes, Change{Setting: setting, Have: have, Want: want, Why: why})
}

// lower writes a setting as the server's own JSON does.
func lower(v fmt.Stringer) string { return strings.TrimPrefix(strings.ToLower(v.String()), "discard") }

func show[T number](v T) string {
	if d, ok := any(v).(time.Duration); ok {
		return d.String()
	}
	return fmt.Sprint(v)
}

func showLimit[T number](v T) string {
	if v <= 0 {
		return "unlimited"
	}
	return show(v)
}
