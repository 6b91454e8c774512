package cdc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// ahead is how many changes are read before they are published.
	ahead = 4096
	// statusEvery is how often the server is told the position; it ends
	// connections that say nothing for as long as wal_sender_timeout.
	statusEvery = time.Second
	// silence is how long the server, which is asked to answer, may say nothing.
	silence = 2 * time.Minute
)

// change is what the log tells, reduced to what matters here: a row, or a position.
type change struct {
	// row is the id of a row that was inserted by transaction xid, if end is 0.
	row int64
	xid uint32
	// end is a position: the rows committed before it were told before this.
	end pglogrepl.LSN
}

// stream is a connection that reads the log.
type stream struct {
	conn    *pgconn.PgConn // read's
	changes chan change
	// confirmed is the position up to which all rows are dealt with.
	confirmed atomic.Uint64

	// What read knows.
	relations map[uint32]int // where the rows of a relation have their id
	within    bool           // a transaction has begun and not ended
	xid       uint32         // its number
	heard     time.Time      // when what the server last said was dealt with
	told      time.Time      // when the server was last told the position
}

func newStream(conn *pgconn.PgConn) *stream {
	return &stream{conn: conn, changes: make(chan change, ahead), relations: map[uint32]int{}, heard: time.Now()}
}

// confirm tells the server the position.
func (s *stream) confirm(ctx context.Context) error {
	s.told = time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: pglogrepl.LSN(s.confirmed.Load()),
		ReplyRequested:   true,
	})
}

// read reads changes until ctx ends, and tells the server the position.
func (s *stream) read(ctx context.Context) error {
	for {
		if err := s.confirm(ctx); err != nil {
			return err
		}
		if err := s.readUntil(ctx, s.told.Add(statusEvery)); err != nil {
			return err
		}
		if quiet := time.Since(s.heard); quiet > silence {
			return fmt.Errorf("the server has said nothing for %s", quiet)
		}
	}
}

func (s *stream) readUntil(ctx context.Context, end time.Time) error {
	brief, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for brief.Err() == nil {
		message, err := s.conn.ReceiveMessage(brief)
		if err != nil {
			if brief.Err() != nil && !s.conn.IsClosed() {
				break
			}
			return err
		}
		if err := s.receive(ctx, message); err != nil {
			return err
		}
		s.heard = time.Now() // receive may have taken its time
	}
	return ctx.Err()
}

func (s *stream) receive(ctx context.Context, message pgproto3.BackendMessage) error {
	switch message := message.(type) {
	case *pgproto3.CopyData:
		return s.data(ctx, message.Data)
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(message)
	case *pgproto3.CopyDone:
		return errors.New("the server has ended the replication")
	}
	return nil
}

func (s *stream) data(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("empty replication message")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		s.alive(alive)
		return nil
	case pglogrepl.XLogDataByteID:
		log, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		return s.log(ctx, log.WALData)
	}
	return nil
}

// alive moves the position past what others have written: everything up to
// there was read, none of it concerns the table. Otherwise a quiet outbox on a
// busy server would keep that server's log.
func (s *stream) alive(alive pglogrepl.PrimaryKeepaliveMessage) {
	if s.within {
		return
	}
	select {
	case s.changes <- change{end: alive.ServerWALEnd}:
	default: // there is enough to do; another one comes
	}
}

func (s *stream) log(ctx context.Context, data []byte) error {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	switch message := message.(type) {
	case *pglogrepl.BeginMessage:
		s.within, s.xid = true, message.Xid
	case *pglogrepl.CommitMessage:
		s.within = false
		return s.push(ctx, change{end: message.TransactionEndLSN})
	case *pglogrepl.RelationMessage:
		s.relations[message.RelationID] = slices.IndexFunc(message.Columns, func(c *pglogrepl.RelationMessageColumn) bool { return c.Name == "id" })
	case *pglogrepl.InsertMessage:
		column, known := s.relations[message.RelationID]
		if !known || column < 0 || column >= len(message.Tuple.Columns) {
			return fmt.Errorf("an insert into relation %d without a column id", message.RelationID)
		}
		id, err := message.Tuple.Columns[column].Int64()
		if err != nil {
			return fmt.Errorf("column id: %w", err)
		}
		return s.push(ctx, change{row: id, xid: s.xid})
	}
	return nil
}

// push queues a change. While there is no room, because nothing can be
// published, the server goes on to hear that this reader lives.
func (s *stream) push(ctx context.Context, c change) error {
	for {
		select {
		case s.changes <- c:
			return nil
		default:
		}
		wait := time.NewTimer(time.Until(s.told.Add(statusEvery)))
		select {
		case s.changes <- c:
			wait.Stop()
			return nil
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		case <-wait.C:
			if err := s.confirm(ctx); err != nil {
				return err
			}
		}
	}
}

// publish has what was read published until ctx ends. All that is there goes
// together; nothing waits for more than that everybody sees it.
func (s *stream) publish(ctx context.Context, visible func(context.Context, []uint32) error, publish func(context.Context, []int64) error) error {
	for {
		got, err := s.take(ctx)
		if err != nil {
			return err
		}
		if len(got.rows) > 0 {
			if err := visible(ctx, got.xids); err != nil {
				return err
			}
			if err := publish(ctx, got.rows); err != nil {
				return err
			}
		}
		if got.end > 0 {
			s.confirmed.Store(uint64(got.end))
		}
	}
}

// taken are changes that are published together.
type taken struct {
	rows []int64
	xids []uint32 // the transactions that have inserted them
	end  pglogrepl.LSN
}

func (t *taken) add(c change) {
	if c.end != 0 {
		t.end = c.end
		return
	}
	t.rows = append(t.rows, c.row)
	if n := len(t.xids); n == 0 || t.xids[n-1] != c.xid { // the rows of one come in a row
		t.xids = append(t.xids, c.xid)
	}
}

// take waits for a change and takes all that are there.
func (s *stream) take(ctx context.Context) (got taken, err error) {
	select {
	case c := <-s.changes:
		got.add(c)
	case <-ctx.Done():
		return got, ctx.Err()
	}
	for range ahead {
		select {
		case c := <-s.changes:
			got.add(c)
		default:
			return got, nil
		}
	}
	return got, nil
}
