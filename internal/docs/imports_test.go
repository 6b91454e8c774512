package docs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/farandole/farandole/"

// heavy are the modules that the table of imports has a word for: a program
// should carry them only if it needs them.
var heavy = map[string]string{
	"github.com/nats-io/nats.go":        "nats",
	"github.com/nats-io/nats-server/v2": "nats-server",
	"github.com/jackc/pgx/v5":           "pgx",
	"github.com/jackc/pglogrepl":        "pglogrepl",
	"modernc.org/sqlite":                "sqlite",
	"go.opentelemetry.io/otel":          "otel",
}

func TestImports(t *testing.T) {
	t.Parallel()
	all := graph(t)
	t.Run("are those of the table", func(t *testing.T) { t.Parallel(); compare(t, all, importTable(t)) })
	t.Run("carry what was asked for", func(t *testing.T) { t.Parallel(); carry(t, all) })
}

// compare wants each package to import what its line says, no more and no less.
func compare(t *testing.T, all, table map[string][]string) {
	t.Helper()
	for pkg, imports := range all {
		name, ours := strings.CutPrefix(pkg, module)
		if !ours {
			continue
		}
		line, found := table[name]
		delete(table, name)
		if !found {
			t.Errorf("DESIGN.md has no line for %s", name)
		}
		got := map[string]bool{}
		for _, path := range imports {
			w := word(path)
			if got[w] = true; w != "" && !slices.Contains(line, w) {
				t.Errorf("%s imports %s, which its line in DESIGN.md does not name", name, w)
			}
		}
		for _, w := range line {
			if !got[w] {
				t.Errorf("%s does not import %s, which its line in DESIGN.md names", name, w)
			}
		}
	}
	for name := range table {
		t.Errorf("DESIGN.md has a line for %s, which is no package", name)
	}
}

// carry looks at what a program carries because of an import, through however
// many packages: nothing that is for tests, and, because of the library, no
// server, driver or demo that it did not ask for. The table cannot allow it.
func carry(t *testing.T, all map[string][]string) {
	t.Helper()
	tests := regexp.MustCompile(`^internal/testkit/`)
	apart := regexp.MustCompile(`^(bustest|cmd|e2e|examples|internal|services)(/|$)`)
	unasked := regexp.MustCompile(`^(nats-server|pgx|pglogrepl|sqlite|otel|cmd/.*|services/.*|internal/(demo|natsserver))$`)
	asked := map[string][]string{
		"outbox/postgres": {"pgx"}, "outbox/postgres/internal/target": {"pgx"}, "outbox/postgres/cdc": {"pgx", "pglogrepl"}, "outbox/sqlite": {"sqlite"},
		"tracing": {"otel"},
	}
	for pkg := range all {
		name, ours := strings.CutPrefix(pkg, module)
		if !ours || tests.MatchString(name) {
			continue
		}
		way := wayTo(all, pkg, map[string]bool{}, func(path string) bool {
			w := word(path)
			return tests.MatchString(w) || !apart.MatchString(name) && unasked.MatchString(w) && !slices.Contains(asked[name], w)
		})
		if way != nil {
			t.Errorf("%s carries what it must not: %s", name, strings.Join(way, " -> "))
		}
	}
}

// wayTo finds imports that lead from a package to one that is meant.
func wayTo(all map[string][]string, from string, seen map[string]bool, meant func(string) bool) []string {
	seen[from] = true
	for _, next := range all[from] {
		if meant(next) {
			return []string{from, next}
		}
		if seen[next] {
			continue
		}
		if way := wayTo(all, next, seen, meant); way != nil {
			return append([]string{from}, way...)
		}
	}
	return nil
}

// word is what the table calls a package: the directory of one of this module, a
// word of [heavy], "" for any other.
func word(path string) string {
	if name, ours := strings.CutPrefix(path, module); ours {
		return name
	}
	for prefix, name := range heavy {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return name
		}
	}
	return ""
}

// importTable reads the table of DESIGN.md: a package and its imports a line, and
// more of them in indented lines.
func importTable(t *testing.T) map[string][]string {
	t.Helper()
	m := regexp.MustCompile("(?s)<!-- imports -->\n```text\n(.*?)```").FindStringSubmatch(read(t, "DESIGN.md"))
	if m == nil {
		t.Fatal("DESIGN.md has no table of imports")
	}
	table, name := map[string][]string{}, ""
	for line := bufio.NewScanner(strings.NewReader(m[1])); line.Scan(); {
		fields := strings.Fields(line.Text())
		if len(fields) == 0 {
			continue
		}
		if !strings.HasPrefix(line.Text(), " ") {
			name, fields = fields[0], fields[1:]
		}
		table[name] = append(table[name], fields...)
	}
	return table
}

// graph has the imports of all packages of this module and of those that they
// need, tests apart.
func graph(t *testing.T) map[string][]string {
	t.Helper()
	sources(t) // go test repeats an old result unless a file that the test has read has changed
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,Standard", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if !pkg.Standard {
			all[pkg.ImportPath] = pkg.Imports
		}
	}
}

// What examples show can be copied: neither they nor their tests import what is internal.
func TestExamplesImportNothingInternal(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			if strings.HasPrefix(spec.Path.Value, `"`+module+"internal/") {
				t.Errorf("%s imports %s", file, spec.Path.Value)
			}
		}
	}
}
