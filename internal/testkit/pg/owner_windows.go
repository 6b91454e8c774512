package pg

import (
	"errors"
	"syscall"
)

type owner struct{}

// findOwner fails: the guard is a shell script.
func findOwner() (*owner, error) { return nil, errors.ErrUnsupported }

func (*owner) attributes() *syscall.SysProcAttr { return nil }

func (*owner) give(string) error { return nil }
