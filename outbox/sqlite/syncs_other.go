//go:build !linux

package sqlite

import "os"

func syncFile(f *os.File) error { return f.Sync() }
