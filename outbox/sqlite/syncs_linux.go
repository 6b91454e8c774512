package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncFile writes what is in f to disk, and what is needed to read it, but not
// its times.
func syncFile(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
