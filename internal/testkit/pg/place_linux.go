package pg

import (
	"os"
	"syscall"
)

// memory is the file system that a Linux machine keeps in its memory, and room is
// what has to be free there.
const (
	memory = "/dev/shm"
	room   = 2 << 30
)

// place is where a server's files are made; "" is the directory of temporary files,
// also where TMPDIR names one.
// One that need not outlive the machine spares the disk: each of its databases is some
// 300 files, and to make and remove them takes half of a processor's time on ext4.
func place(cfg Config) string {
	var fs syscall.Statfs_t
	if cfg.Durable || os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room { //nolint:gosec // no size is negative
		return ""
	}
	return memory
}
