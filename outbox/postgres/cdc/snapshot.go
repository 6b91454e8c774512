package cdc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// visible waits until everybody sees what the transactions have written. The log tells
// of a transaction when its commit is on disk. Others see its rows a moment later, or
// much later if the commit has to wait for a standby.
func (f *Feed) visible(ctx context.Context, xids []uint32) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var text string
		if err := f.o.DB().QueryRowContext(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
			return err
		}
		s, err := parseSnapshot(text)
		if err != nil {
			return err
		}
		if xids = slices.DeleteFunc(xids, s.sees); len(xids) == 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// snapshot says which transactions have ended: those before end that are not running.
type snapshot struct {
	end     uint64
	running []uint64
}

// parseSnapshot reads Postgres's xmin:xmax:xip,xip,..., as in "10:20:10,14".
func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q: want three parts", text)
	}
	if s.end, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return s, fmt.Errorf("snapshot %q: %w", text, err)
	}
	for xid := range strings.SplitSeq(parts[2], ",") {
		if xid == "" {
			continue
		}
		n, err := strconv.ParseUint(xid, 10, 64)
		if err != nil {
			return s, fmt.Errorf("snapshot %q: %w", text, err)
		}
		s.running = append(s.running, n)
	}
	return s, nil
}

// sees reports whether a transaction has ended. xid is the lower half of its number,
// as the log has it.
func (s snapshot) sees(xid uint32) bool {
	before := int32(uint32(s.end) - xid) //nolint:gosec // they are less than 2^31 apart
	return before > 0 && !slices.Contains(s.running, s.end-uint64(before))
}
