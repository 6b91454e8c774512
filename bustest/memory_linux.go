package bustest

import (
	"os"
	"syscall"
)

// memory is the file system that a Linux machine keeps in its memory, and room is
// what has to be free there.
const (
	memory = "/dev/shm"
	room   = 4 << 30
)

// keepFilesInMemory has temporary files of this process, and of those that it starts,
// made in memory where there is room for them, unless TMPDIR says where. The store of
// a server and a database of Postgres are hundreds of files: to make and remove them
// took up to half of a processor's time on ext4, and a busy disk up to half a minute.
func keepFilesInMemory() error {
	var fs syscall.Statfs_t
	err := syscall.Statfs(memory, &fs)
	free := fs.Bavail * uint64(fs.Bsize) //nolint:gosec // no size is negative
	if err == nil && free >= room && os.Getenv("TMPDIR") == "" {
		return os.Setenv("TMPDIR", memory)
	}
	return nil
}
