package dedup

import (
	"context"
	"fmt"

	"github.com/farandole/farandole/event"
)

// Claim says whether an event of an owned partition is to be handled. It asks nobody,
// unless the event has to say that it starts. Errors match [ErrConfig] for a request
// without a tenure, [ErrLeaseLost], or are those of Complete.
func (l *Partitions) Claim(ctx context.Context, r Request) (*Claim, error) {
	t := r.Tenure
	if t == nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w: it was not read from a partition, which this ledger needs", r.Consumer, r.Key, ErrConfig)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	key, err := r.Key.Binary()
	if err != nil {
		return nil, fmt.Errorf("dedup: claim: %w: %w", ErrConfig, err)
	}
	if err := l.certain(ctx, t); err != nil {
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	c, starts, err := t.admit(r, key)
	if err != nil || c.Status != Claimed || !starts {
		return c, err
	}
	what := kept{key: key, starts: true, record: c.record}
	if c.Crashes == 0 {
		err = l.marks.group.commit(ctx, newStep(t, what, nil))
		t.doubt(unplaced(err))
	} else { // the crash becomes part of its story
		err = l.settle(ctx, c, what, nil)
	}
	if err != nil {
		t.leave(c)
		return nil, fmt.Errorf("dedup: claim %s.%s: %w", r.Consumer, r.Key, err)
	}
	t.counted(c)
	c.started = true
	return c, nil
}

// certain finds out whether a batch that was not answered is stored: if so, a page that
// follows the one before it is refused, and the partition has to be taken anew.
// Until then no handler runs: it would run again and again during an outage.
func (l *Partitions) certain(ctx context.Context, t *Tenure) error {
	t.mu.Lock()
	doubtful := t.doubtful
	t.mu.Unlock()
	if !doubtful {
		return nil
	}
	err := l.marks.group.commit(ctx, newStep(t, kept{}, nil))
	t.doubt(err)
	return err
}

// admit decides about an event, and says whether it has to be told that it starts.
func (t *Tenure) admit(r Request, key event.BinaryKey) (c *Claim, starts bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, false, fmt.Errorf("dedup: claim %s.%s: %w: partition %d is another owner's", r.Consumer, r.Key, ErrLeaseLost, t.partition)
	}
	story := t.stories[r.Key]
	_, suspect := t.suspects[key]
	_, running := t.running[r.Key]
	before := story.record
	switch {
	case running: // another copy of it, under another key
		return &Claim{Request: r, Status: Busy, RetryIn: retryMargin}, false, nil
	case (before.State == stateParked || before.State == stateDiscarded) && r.Replay <= before.Replay:
		return &Claim{Request: r, Status: Parked}, false, nil
	case before.State == stateDone, before.State == "" && t.ended.has(digest(key[:16])):
		return &Claim{Request: r, Status: Done}, false, nil
	}
	if suspect {
		before.Crashes++
	}
	next := before.claimed("", r)
	if suspect {
		next.Crashes = max(next.Crashes, 1)
	}
	starts = next.Crashes > 0 || t.careful > 0 || t.ledger.claims
	if t.careful > 0 {
		t.careful--
	}
	t.running[r.Key] = struct{}{}
	return &Claim{
		Request: r, Status: Claimed,
		Attempts: next.Attempts, Failures: next.Failures, Crashes: next.Crashes,
		binary: key, revision: story.revision, record: next,
	}, starts, nil
}

// counted says that the crash of a suspect is on record: coming again it has had no
// other one.
func (t *Tenure) counted(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.suspects, c.binary)
}

// leave ends a claim in this process.
func (t *Tenure) leave(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, c.Request.Key)
}

// Extend does nothing: an owner has no lease. It tells when the partition is lost, with
// an error that matches [ErrLeaseLost].
func (l *Partitions) Extend(_ context.Context, c *Claim) error {
	if c.Status == Claimed && c.Request.Tenure.isLost() {
		return fmt.Errorf("dedup: extend %s.%s: %w: partition %d is another owner's", c.Request.Consumer, c.Request.Key, ErrLeaseLost, c.Request.Tenure.partition)
	}
	return nil
}
