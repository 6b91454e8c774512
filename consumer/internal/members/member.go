package members

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// Member is one process of a consumer.
type Member struct {
	ID    string    `json:"id"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"` // by its own clock
	// Leaving is set while it finishes what it has begun: it gets no partitions.
	Leaving bool `json:"leaving,omitempty"`
}

// read returns the member whose key has this last token. What cannot be read is a
// member still: all have to see the same ones.
func read(token string, data []byte) Member {
	var m Member
	if err := json.Unmarshal(data, &m); err != nil {
		m = Member{}
	}
	m.ID = token
	return m
}

// List returns a consumer's members, by id. One that has died is among them for 4 s
// more. Errors match [bus.ErrNoStream], [bus.ErrDenied], [bus.ErrUnavailable] or
// [bus.ErrClosed].
func List(ctx context.Context, b *bus.Bus, c event.Consumer) ([]Member, error) {
	var list []Member
	prefix := keysOf(b, c)
	err := b.Scan(ctx, stream(b), prefix+"*", func(subject string, _ uint64, data []byte) error {
		m := read(strings.TrimPrefix(subject, prefix), data)
		list = slices.DeleteFunc(list, func(seen Member) bool { return seen.ID == m.ID }) // renewed meanwhile
		list = append(list, m)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("members: list %s: %w", c, advise(err))
	}
	slices.SortFunc(list, byID)
	return list, nil
}

func byID(a, b Member) int { return strings.Compare(a.ID, b.ID) }

// stream is the stream of the bucket.
func stream(b *bus.Bus) string { return "KV_" + b.Names().Bucket(event.MembersBucket) }

// keysOf begins the subjects of a consumer's members in the stream.
func keysOf(b *bus.Bus, c event.Consumer) string {
	return "$KV." + b.Names().Bucket(event.MembersBucket) + "." + string(c) + "."
}

// advise says what to do about a bucket that does not exist.
func advise(err error) error {
	if errors.Is(err, bus.ErrNoStream) {
		return fmt.Errorf("%w: run `farandole topology apply`", err)
	}
	return err
}
