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
	// ahead is how many entries are read before they are published.
	ahead = 4096
	// statusEvery is how often the server is told the position. It ends a connection
	// on which it has heard nothing for wal_sender_timeout.
	statusEvery = time.Second
	// maxSilence is how long the server may say nothing, although it is asked to answer.
	maxSilence = 2 * time.Minute
)

// entry is what the feed takes from the log: an inserted row, or a position.
type entry struct {
	// row is the id of a row that was inserted by transaction xid, if end is 0.
	row int64
	xid uint32
	// end is a position in the log, 0 for a row: the rows committed before it came
	// before this entry.
	end pglogrepl.LSN
}

// stream is a connection that reads the log.
type stream struct {
	conn    *pgconn.PgConn // read's
	entries chan entry
	// confirmed is the position up to which all rows are dealt with.
	confirmed atomic.Uint64

	// What follows is for read alone.
	relations map[uint32]int // the index of the column id, by relation
	within    bool           // a transaction has begun and not ended
	xid       uint32         // its number
	heard     time.Time      // when the latest message of the server was dealt with
	told      time.Time      // when the server was last told the position
}

func newStream(conn *pgconn.PgConn) *stream {
	return &stream{conn: conn, entries: make(chan entry, ahead), relations: map[uint32]int{}, heard: time.Now()}
}

// confirm tells the server the position.
func (s *stream) confirm(ctx context.Context) error {
	s.told = time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: pglogrepl.LSN(s.confirmed.Load()),
		ReplyRequested:   true,
	})
}

// read reads entries until ctx ends, and tells the server the position.
func (s *stream) read(ctx context.Context) error {
	for {
		if err := s.confirm(ctx); err != nil {
			return err
		}
		if err := s.readUntil(ctx, s.told.Add(statusEvery)); err != nil {
			return err
		}
		if quiet := time.Since(s.heard); quiet > maxSilence {
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

// alive moves the position to the end of the log that the server has read for this
// stream: none of what is left concerns the table. Otherwise the server would keep, for
// a quiet outbox, the log that everybody else writes.
func (s *stream) alive(alive pglogrepl.PrimaryKeepaliveMessage) {
	if s.within {
		return
	}
	select {
	case s.entries <- entry{end: alive.ServerWALEnd}:
	default: // there is no room; the next keepalive moves the position
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
		return s.push(ctx, entry{end: message.TransactionEndLSN})
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
		return s.push(ctx, entry{row: id, xid: s.xid})
	}
	return nil
}

// push queues an entry. While there is no room, because nothing can be published, it
// goes on to tell the server the position, so that the connection stays open.
func (s *stream) push(ctx context.Context, e entry) error {
	for {
		select {
		case s.entries <- e:
			return nil
		default:
		}
		wait := time.NewTimer(time.Until(s.told.Add(statusEvery)))
		select {
		case s.entries <- e:
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

// publish passes on what was read until ctx ends. All entries that are queued go
// together. Their rows wait until everybody sees them, and for nothing else.
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

// taken are entries that are published together.
type taken struct {
	rows []int64
	xids []uint32      // the transactions that have inserted them
	end  pglogrepl.LSN // the last position, 0 for none
}

func (t *taken) add(e entry) {
	if e.end != 0 {
		t.end = e.end
		return
	}
	t.rows = append(t.rows, e.row)
	if n := len(t.xids); n == 0 || t.xids[n-1] != e.xid { // the rows of one transaction follow each other
		t.xids = append(t.xids, e.xid)
	}
}

// take waits for an entry and takes all that are queued.
func (s *stream) take(ctx context.Context) (got taken, err error) {
	select {
	case e := <-s.entries:
		got.add(e)
	case <-ctx.Done():
		return got, ctx.Err()
	}
	for range ahead {
		select {
		case e := <-s.entries:
			got.add(e)
		default:
			return got, nil
		}
	}
	return got, nil
}
