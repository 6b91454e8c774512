package e2e_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/farandole/farandole/internal/testkit/pgtest"
)

// The shop of docs/outbox.md works in Postgres, too. Its own test, which imports no more
// than its readers can, takes a database from DATABASE_URL.
func TestExampleWithADatabase_on_Postgres(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	args := slices.Concat([]string{"test", "-count=1", "-vet=off", "-v", "-run=TestShop"}, buildFlags(), []string{"../examples/withdatabase"})
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestShop/Postgres") {
		t.Errorf("%v\n%s", err, out)
	}
}
