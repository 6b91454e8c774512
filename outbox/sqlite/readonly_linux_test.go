package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

// TestOpen_read_only opens files that may only be read. To root that means
// nothing, so this thread lays its rights on files down.
func TestOpen_read_only(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fresh, wal := filepath.Join(dir, "fresh.db"), filepath.Join(dir, "wal.db")
	must(t, os.WriteFile(fresh, nil, 0o600))
	db, err := sqlite.Open(wal)
	must(t, err)
	exec(t, db, "CREATE TABLE t (n)")
	must(t, db.Close())
	for _, path := range []string{fresh, wal} {
		must(t, os.Chmod(path, 0o444))
	}
	must(t, os.Chmod(filepath.Dir(dir), 0o711))
	must(t, os.Chmod(dir, 0o555))
	defer func() { os.Chmod(dir, 0o700) }() //nolint:errcheck // else it is not removed, which is reported

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		if os.Getuid() == 0 {
			const nobody = 65534
			if err := syscall.Setfsuid(nobody); err != nil {
				t.Error(err)
				return
			}
		}
		for _, path := range []string{fresh, wal, filepath.Join(dir, "new.db")} {
			db, err := sqlite.Open(path)
			if err == nil {
				t.Errorf("%s: opened", path)
				db.Close() //nolint:errcheck // the test has failed
				continue
			}
			if !errors.Is(err, outbox.ErrDatabase) || !strings.Contains(err.Error(), "read-only") && !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}()
	<-ended
}
