package bus

import (
	"sync"
	"time"
)

const (
	// inboxRetry is how often a refused inbox is tried again.
	inboxRetry = time.Second
	// inboxAnswer is how long the server has to refuse it once more.
	inboxAnswer = time.Second
)

// inboxes finds out when the inboxes that were refused on this connection are
// granted: the server tells a refusal once and a grant never.
type inboxes struct {
	trying sync.Mutex
	tried  time.Time
}

// refusedInbox returns the refusal of an inbox that stands on this connection, or
// nil. Now and then it subscribes to another inbox; if that is granted it makes
// the connection anew, because only so the client subscribes to its own again.
func (b *Bus) refusedInbox(kind noticeKind) error {
	err := b.notices.inbox(kind)
	if err == nil || !b.inboxes.trying.TryLock() {
		return err
	}
	defer b.inboxes.trying.Unlock()
	if time.Since(b.inboxes.tried) < inboxRetry {
		return err
	}
	b.inboxes.tried = time.Now()
	if b.grantsInbox() && b.nc.ForceReconnect() == nil {
		b.cfg.Logger.Info().Msg("inbox granted, connecting to nats again")
	}
	return err
}

// grantsInbox subscribes to an inbox like the client's own.
func (b *Bus) grantsInbox() bool {
	subject := b.nc.NewInbox() + ".*"
	denials := b.Denials()
	sub, err := b.nc.SubscribeSync(subject)
	if err != nil || b.nc.FlushTimeout(inboxAnswer) != nil {
		return false
	}
	defer sub.Unsubscribe() //nolint:errcheck // it ends with the connection
	for patience := time.After(noticeDelay); ; {
		select {
		case <-denials.Ready():
			if denied, err := denials.Next(); err != nil && denied == subject {
				return false
			}
		case <-patience:
			return true
		}
	}
}
