package event

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// DefaultPartitions is into how many partitions a new event stream puts the keys.
const DefaultPartitions = 32

// MaxPartitions is the most that a system can have.
const MaxPartitions = 9999

// MembersBucket is the short name of the bucket in which consumers that own
// partitions say that they are alive.
const MembersBucket = "members"

// PausesBucket is the short name of the bucket that says which consumers are held up:
// by an operator, or by the open breaker of a dependency.
const PausesBucket = "pauses"

// The event stream stores an event of order.placed.v1 and ord-1 on
// events.order.placed.v1.17.ord-1. The server puts the partition in: publishers
// publish on events.order.placed.v1.ord-1, and so did the server store it before
// there were partitions.

// PartitionOf is the partition in which the server stores the events of a key,
// from 0 to partitions-1: FNV-1a of the key's token. It wants at least one partition.
func PartitionOf(k Key, partitions int) int { return partitionOf(EscapeKey(k), partitions) }

func partitionOf(token string, partitions int) int {
	h := uint32(2166136261)
	for i := range len(token) {
		h = (h ^ uint32(token[i])) * 16777619
	}
	return int(h % uint32(partitions)) //nolint:gosec // partitions is from 1 to MaxPartitions
}

// TypePartitionFilter is the subject filter for the events of one type in one partition.
func (n Names) TypePartitionFilter(t Type, p int) string {
	return n.dotted("events.") + n.bare(string(t)) + "." + strconv.Itoa(p) + ".*"
}

// RedrivePartitionFilter is the subject filter for the redrives of one consumer in one partition.
func (n Names) RedrivePartitionFilter(c Consumer, p int) string {
	return n.dotted("redrive.") + string(c) + ".*.*.*." + strconv.Itoa(p) + ".*"
}

// StoredPartition reads the partition out of the subject of a stored event or of a
// redrive; ok is false for one without, of the time before partitions.
func (n Names) StoredPartition(subject string) (p int, ok bool) {
	rest, ok := n.eventTokens(subject)
	if !ok {
		return 0, false
	}
	_, partition, _ := splitTokens(rest)
	p, err := strconv.Atoi(partition)
	return p, err == nil
}

// Stored is the subject on which a stream of so many partitions has the event or
// redrive that is on subject: with the partition of its key, whatever partition it
// had. Without partitions, and for any other subject, it is subject itself.
func (n Names) Stored(subject string, partitions int) string {
	rest, ok := n.eventTokens(subject)
	if !ok || partitions < 1 {
		return subject
	}
	t, _, key := splitTokens(rest)
	if Type(t).Validate() != nil || key == "" {
		return subject
	}
	return strings.TrimSuffix(subject, rest) + t + "." + strconv.Itoa(partitionOf(key, partitions)) + "." + key
}

// Published is the subject on which the event or redrive was published that the
// stream has on subject: without the partition.
func (n Names) Published(subject string) string {
	rest, ok := n.eventTokens(subject)
	if !ok {
		return subject
	}
	t, partition, key := splitTokens(rest)
	if partition == "" {
		return subject
	}
	return strings.TrimSuffix(subject, rest) + t + "." + key
}

// splitTokens takes what stands behind "events." apart: "order.placed.v1.17.ord-1"
// is order.placed.v1, 17 and ord-1. partition is "" where there is none.
func splitTokens(rest string) (t, partition, key string) {
	at := strings.LastIndexByte(rest, '.')
	t, key = rest[:max(0, at)], rest[at+1:]
	if strings.Count(t, ".") != 3 {
		return t, "", key
	}
	at = strings.LastIndexByte(t, '.')
	if !isPartition(t[at+1:]) {
		return t, "", key
	}
	return t[:at], t[at+1:], key
}

// PartitionTransform is what the event stream does to the subjects of events: it
// puts the key's partition in, as {{partition(32,4)}}.
func (n Names) PartitionTransform(partitions int) (source, destination string) {
	return n.dotted("events.*.*.*.*"),
		n.dotted(fmt.Sprintf("events.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{partition(%d,4)}}.{{wildcard(4)}}", partitions))
}

// The last token is the key, or, where an operator folds keys, a number in its place.
var partitionDestination = regexp.MustCompile(
	`^([a-z][a-z0-9-]*\.)?events\.\{\{wildcard\(1\)}}\.\{\{wildcard\(2\)}}\.\{\{wildcard\(3\)}}\.\{\{partition\(([1-9][0-9]{0,3}),4\)}}\.(\{\{wildcard\(4\)}}|\{\{partition\([0-9]+,4\)}})$`)

// PartitionsIn reads the number of partitions out of a stream's transform; ok is
// false for a transform that makes none.
func PartitionsIn(destination string) (partitions int, ok bool) {
	found := partitionDestination.FindStringSubmatch(destination)
	if found == nil {
		return 0, false
	}
	partitions, err := strconv.Atoi(found[2])
	return partitions, err == nil
}
