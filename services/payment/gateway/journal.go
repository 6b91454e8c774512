package gateway

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// journal is the append-only file of entries. An entry is one line of JSON.
type journal struct {
	file    *os.File     // nil if the books are in memory; nothing is written then
	written atomic.Int64 // bytes
	// broken is set when the journal is closed, and when a write or a sync fails. It
	// is then unknown which bytes are on disk. A later sync that succeeds would not
	// tell, because the kernel reports a loss only once.
	broken atomic.Bool

	syncing sync.Mutex
	synced  int64 // bytes known to be on disk
	closed  bool
}

// openJournal opens or creates the file and applies its entries. It cuts off a last
// line without a line end, whose request was never answered.
func openJournal(path string, log zerolog.Logger, apply func(entry) error) (*journal, error) {
	if path == "" {
		return &journal{}, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	size, torn, err := replay(file, apply)
	if err == nil && torn > 0 {
		log.Warn().Str("path", path).Int64("offset", size).Int("bytes", torn).Msg("torn last line of the journal cut off")
		err = file.Truncate(size)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	j := &journal{file: file}
	j.written.Store(size)
	return j, nil
}

// replay applies all complete lines. size is their length, and torn is how many
// bytes follow them.
func replay(r io.Reader, apply func(entry) error) (size int64, torn int, err error) {
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return size, len(line), nil
		}
		if err != nil {
			return 0, 0, err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, 0, fmt.Errorf("line %d: %w: %w", n, ErrCorrupt, err)
		}
		if err := apply(e); err != nil {
			return 0, 0, fmt.Errorf("line %d: %w", n, err)
		}
		size += int64(len(line))
	}
}

// syncDir syncs a directory, so that a new file in it survives a power failure.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// append writes an entry. The entry is on disk after the next commit. Two calls must
// not overlap.
func (j *journal) append(e entry) error {
	if j.broken.Load() {
		return ErrClosed
	}
	if j.file == nil {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("gateway: encode entry: %w", err)
	}
	n, err := j.file.Write(append(line, '\n'))
	j.written.Add(int64(n))
	if err != nil {
		j.broken.Store(true)
		return fmt.Errorf("%w: write: %w", ErrClosed, err)
	}
	return nil
}

// commit returns when everything that was appended before the call is on disk. One
// sync serves all callers that wait.
func (j *journal) commit() error {
	if j.file == nil {
		return nil
	}
	want := j.written.Load()
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.synced >= want {
		return nil
	}
	if j.broken.Load() {
		return ErrClosed
	}
	reached := j.written.Load()
	if err := j.file.Sync(); err != nil {
		j.broken.Store(true)
		return fmt.Errorf("%w: sync: %w", ErrClosed, err)
	}
	j.synced = reached
	return nil
}

// close syncs and closes the file. A second call does nothing. It must not overlap
// with append.
func (j *journal) close() error {
	err := j.commit()
	j.broken.Store(true)
	j.syncing.Lock()
	defer j.syncing.Unlock()
	if j.file == nil || j.closed {
		return nil
	}
	j.closed = true
	return errors.Join(err, j.file.Close())
}
