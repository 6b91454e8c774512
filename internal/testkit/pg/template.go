package pg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// settled are the settings of every server's data.
var settled = []string{"--username=" + role, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"}

// initialise makes the server's data. What initdb makes is the same each time and
// takes more than a second of a processor, so the first server of a version leaves
// a copy in the user's cache, as the Go tool does with what it builds, and the
// others start from that.
func (s *Server) initialise(ctx context.Context) error {
	version, err := s.command(ctx, s.program("initdb"), "--version").Output()
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	template := ""
	if cache, err := os.UserCacheDir(); err == nil {
		hash := sha256.Sum256(fmt.Append(version, s.bin, settled))
		template = filepath.Join(cache, "farandole", fmt.Sprintf("postgres-%x", hash[:8]))
		if _, err := os.Stat(template); err == nil {
			return s.copyData(template)
		}
	}
	initdb := s.command(ctx, s.program("initdb"), append([]string{"--pgdata=" + s.data()}, settled...)...)
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if template != "" {
		keep(s.data(), template) //nolint:errcheck // where nothing can be kept each server runs initdb
	}
	return nil
}

// copyData makes the server's data a copy of the template.
func (s *Server) copyData(template string) error {
	if err := os.CopyFS(s.data(), os.DirFS(template)); err != nil {
		return err
	}
	if err := os.Chmod(s.data(), 0o700); err != nil { //nolint:gosec // Postgres takes no other
		return err
	}
	return filepath.WalkDir(s.data(), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, s.owner.give(path))
	})
}

// keep makes data the template. It appears there as a whole, or not at all.
func keep(data, template string) error {
	dir := filepath.Dir(template)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	half, err := os.MkdirTemp(dir, "half-")
	if err != nil {
		return err
	}
	if err = os.CopyFS(half, os.DirFS(data)); err == nil {
		err = os.Rename(half, template)
	}
	return errors.Join(err, os.RemoveAll(half)) // a rename fails if another server's is there
}
