package bus

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
)

// MaxBatch is how many messages a server takes in one atomic batch.
const MaxBatch = 1000

// Headers of atomic batches (NATS ADR-50). Stored messages keep them.
const (
	// HeaderBatchID is the id of a message's batch.
	HeaderBatchID = "Nats-Batch-Id"
	// HeaderBatchSequence is the place of a message in its batch, from 1.
	HeaderBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// batchHeaderSize is by how much the headers of a batch enlarge a message, at most.
const batchHeaderSize = len(HeaderBatchID+": "+"\r\n") + 26 +
	len(HeaderBatchSequence+": 1000\r\n") + len(headerBatchCommit+": 1\r\n")

// BatchError is returned when one message of a batch can never be in it.
type BatchError struct {
	// Index of the message, from 0.
	Index int
	// Err matches [ErrTooLarge], or [ErrRefused].
	Err error
}

func (e *BatchError) Error() string {
	return fmt.Sprintf("message %d of the batch: %v", e.Index, e.Err)
}

// Unwrap returns Err.
func (e *BatchError) Unwrap() error { return e.Err }

// SendBatch sends 1 to [MaxBatch] messages of one stream as an atomic batch and
// returns without waiting: all of them become stored, in this order and next to
// each other, or none does. The receipt's sequence is that of the last one. The
// messages get the headers of the batch and must not be changed before Wait
// returns; sending them again in another batch is fine.
//
// The stream must allow atomic batches, and refuses one for any of its
// messages: for an expected sequence that does not match ([ErrConflict]), or a
// message id that it knows ([ErrDuplicate]). [ErrIncomplete] and [ErrBusy] are
// worth another try. A single message is sent without a batch. Errors are those of
// [Bus.Send], and a [*BatchError] before anything is sent.
func (b *Bus) SendBatch(ctx context.Context, msgs []*nats.Msg) (*Pending, error) {
	last := len(msgs) - 1
	if last < 0 || last >= MaxBatch {
		return nil, fmt.Errorf("bus: batch of %d messages: %w: want 1 to %d", len(msgs), ErrTooLarge, MaxBatch)
	}
	id := []string{rand.Text()}
	for i, m := range msgs {
		delete(m.Header, headerBatchCommit)
		if last == 0 {
			delete(m.Header, HeaderBatchID)
			delete(m.Header, HeaderBatchSequence)
			continue
		}
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[HeaderBatchID] = id
		m.Header[HeaderBatchSequence] = []string{strconv.Itoa(i + 1)}
		if err := b.fit(m, batchHeaderSize); err != nil {
			return nil, &BatchError{Index: i, Err: err}
		}
	}
	if last == 0 {
		return b.Send(ctx, msgs[0])
	}
	notices := b.notices.last.Load()
	for _, m := range msgs[:last] {
		if err := b.nc.PublishMsg(m); err != nil {
			return nil, fmt.Errorf("bus: publish %s: %w", m.Subject, publishFault(err))
		}
	}
	msgs[last].Header[headerBatchCommit] = []string{"1"}
	p, err := b.Send(ctx, msgs[last])
	if err != nil {
		return nil, err
	}
	p.from, p.batch = notices, msgs
	return p, nil
}
