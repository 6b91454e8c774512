//go:build unix

package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock locks f, or fails at once.
func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
