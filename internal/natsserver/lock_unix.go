//go:build unix

package natsserver

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks f until it is closed, or fails at once.
func lockFile(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
