//go:build unix

package pg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the user that the server runs as; nil means this process's.
type owner struct{ uid, gid int }

// findOwner returns who a server started by this process belongs to.
func findOwner() (*owner, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nobody else
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("who is to run it instead of root: %w", err)
		}
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	return &owner{uid, gid}, errors.Join(errUID, errGID)
}

// attributes make a command run as the owner.
func (o *owner) attributes() *syscall.SysProcAttr {
	if o == nil {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}} //nolint:gosec // ids are that small
}

// give makes dir the owner's.
func (o *owner) give(dir string) error {
	if o == nil {
		return nil
	}
	return os.Chown(dir, o.uid, o.gid)
}
