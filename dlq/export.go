package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Export writes the letters that match f to w as JSON lines, one [Record] a
// line, oldest first, and returns how many. What is removed meanwhile is left
// out; nothing is changed. An error of w is returned wrapped.
func (q *Queue) Export(ctx context.Context, w io.Writer, f Filter) (int, error) {
	if err := f.validate(); err != nil {
		return 0, err
	}
	v, targets, err := q.targets(ctx, Selection{Filter: f})
	if err != nil {
		return 0, err
	}
	out := json.NewEncoder(w)
	n := 0
	for _, t := range targets {
		l, err := q.read(ctx, v.stream, t.sequence)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return n, err
		}
		if err := out.Encode(l.record()); err != nil {
			return n, fmt.Errorf("dlq: export: %w", err)
		}
		n++
	}
	return n, nil
}
