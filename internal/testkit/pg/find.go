package pg

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// ErrMissing is returned when this machine has no Postgres server binaries.
var ErrMissing = errors.New("pg: Postgres is not installed (Debian: postgresql)")

// debian is where Debian keeps each major version; it is not in PATH there.
const debian = "/usr/lib/postgresql/*/bin"

// programs are what a server takes to be made and run.
var programs = [...]string{"postgres", "initdb", "pg_ctl"}

// find returns the directory of the server binaries: that of the postgres in
// PATH, or else the one of the newest version among those that match elsewhere.
func find(elsewhere string) (string, error) {
	dirs, err := filepath.Glob(elsewhere)
	if err != nil {
		return "", err
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if path, err := exec.LookPath("postgres"); err == nil {
		// A link's neighbours need not be there: Postgres finds its files beside the real one.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = slices.Insert(dirs, 0, filepath.Dir(path))
		}
	}
	for _, dir := range dirs {
		if complete(dir) {
			return dir, nil
		}
	}
	return "", ErrMissing
}

// version is the N of /usr/lib/postgresql/N/bin, 0 if it is no number.
func version(dir string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	if err != nil {
		return 0
	}
	return n
}

func complete(dir string) bool {
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return false
		}
	}
	return true
}
