package pg

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// install makes a directory with these programs.
func install(t *testing.T, dir string, names ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	t.Setenv("PATH", filepath.Join(root, "path"))
	elsewhere := filepath.Join(root, "*", "bin")
	expect := func(want string, wantErr error) {
		t.Helper()
		if got, err := find(elsewhere); got != want || !errors.Is(err, wantErr) {
			t.Errorf("found %q, %v; want %q, %v", got, err, want, wantErr)
		}
	}
	expect("", ErrMissing)

	install(t, filepath.Join(root, "17", "bin"), "psql", "pg_ctl") // a client
	expect("", ErrMissing)

	install(t, filepath.Join(root, "9", "bin"), programs[:]...)
	newest := install(t, filepath.Join(root, "15", "bin"), programs[:]...)
	expect(newest, nil)

	// The one in PATH comes first, and is where its link leads.
	chosen := install(t, filepath.Join(root, "opt"), programs[:]...)
	if err := os.Symlink(filepath.Join(chosen, "postgres"), filepath.Join(install(t, filepath.Join(root, "path")), "postgres")); err != nil {
		t.Fatal(err)
	}
	expect(chosen, nil)
}
