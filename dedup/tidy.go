package dedup

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The event stream allows no roll-ups, by which a message would replace those of
// its subject: any publisher could erase the stream with one. So records and
// documents follow each other, the last one counts, and those before it are
// purged when it is stored. Should that get lost nothing is wrong, and the next
// change of the same one makes up for it. Records end by themselves besides.

// replaced tidies up after a batch whose messages are at these sequences.
func (s *partitionStore) replaced(msgs []*nats.Msg, sequences []uint64) {
	for i, m := range msgs {
		if m.Header[headerPage] != nil {
			continue // all pages count; see [Tenure.tidy]
		}
		expected := m.Header[jetstream.ExpectedLastSubjSeqHeader]
		forced := len(expected) == 0 && strings.HasPrefix(m.Subject, s.prefix)
		if !forced && (len(expected) == 0 || expected[0] == "0") {
			continue
		}
		s.tidy(m.Subject)
		if m.Header.Get(headerOperation) == operationDelete {
			s.forget(m.Subject, sequences[i])
		}
	}
}

// tidy asks the server to purge all messages of a subject but the last. It
// waits for no answer.
func (s *partitionStore) tidy(subject string) {
	s.purge(purge{Filter: subject, Keep: 1})
}

// forget removes a deleted document's trace after a while, unless it was
// created again. The trace has no lifetime: it would end also where an older
// version had not been purged, which would be back then. A process that ends
// before leaves it for ever.
func (s *partitionStore) forget(subject string, sequence uint64) {
	time.AfterFunc(deletedFor, func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
		defer cancel()
		if m, err := s.latest(ctx, subject); err == nil && m != nil && m.Sequence == sequence && m.Header.Get(headerOperation) == operationDelete {
			s.purge(purge{Filter: subject, Sequence: sequence + 1})
		}
	})
}

// purge is the body of $JS.API.STREAM.PURGE: messages of a subject below a
// sequence, or all but the last.
type purge struct {
	Filter   string `json:"filter"`
	Sequence uint64 `json:"seq,omitempty"`
	Keep     uint64 `json:"keep,omitempty"`
}

func (s *partitionStore) purge(what purge) {
	request, err := json.Marshal(what)
	if err == nil {
		err = s.bus.Conn().Publish(s.bus.APIPrefix()+"STREAM.PURGE."+s.stream, request)
	}
	if err != nil {
		s.log.Warn().Err(err).Str("subject", what.Filter).Msg("replaced messages not purged, the next change does it")
	}
}

// sighted is a page and when it was stored.
type sighted struct {
	sequence uint64
	at       time.Time
}

// sight notes a page for its removal: one in a while, all before go with it.
func (t *Tenure) sight(sequence uint64, at time.Time) {
	if n := len(t.pages); n == 0 || at.Sub(t.pages[n-1].at) > t.ledger.retention/slots {
		t.pages = append(t.pages, sighted{sequence, at})
	}
}

// tidy forgets what is older than the retention, and has the server forget it.
func (t *Tenure) tidy() {
	now := t.now()
	t.mu.Lock()
	t.ended.forget(now)
	n := 0
	for n < len(t.pages)-1 && now.Sub(t.pages[n+1].at) > t.ledger.retention {
		n++
	}
	for k, e := range t.stories {
		if !e.record.kept() && now.Sub(e.created) > t.ledger.retention {
			delete(t.stories, k)
		}
	}
	var below uint64
	if n > 0 {
		below = t.pages[n].sequence
		t.pages = t.pages[n:]
	}
	t.mu.Unlock()
	if below > 0 {
		t.ledger.marks.purge(purge{Filter: t.subject, Sequence: below})
	}
}
