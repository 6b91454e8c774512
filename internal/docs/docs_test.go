package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// Every file, function, method and test that DESIGN.md names exists.
func TestDesignNamesWhatExists(t *testing.T) {
	t.Parallel()
	code := sources(t)
	for _, name := range quoted(t, "DESIGN.md") {
		switch {
		case strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "/"):
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("DESIGN.md names the file %s: %v", name, err)
			}
		case regexp.MustCompile(`^[A-Za-z]\w*(\.\w+)?$`).MatchString(name):
			if !declared(code, name) {
				t.Errorf("DESIGN.md names %s, which is not declared", name)
			}
		}
	}
}

// The code that the documents show is that of the examples, line by line.
func TestShownCodeIsCompiled(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{"README.md", "docs/outbox.md"} {
		shown := regexp.MustCompile("(?s)<!-- code: (\\S+) -->\n```go\n(.*?)```").FindAllStringSubmatch(read(t, doc), -1)
		if len(shown) == 0 {
			t.Fatalf("%s shows no code", doc)
		}
		for _, m := range shown {
			source := squeeze(read(t, m[1]))
			for block := range strings.SplitSeq(m[2], "\n\n") {
				if !strings.Contains(source, squeeze(block)) {
					t.Errorf("%s shows code that is not in %s:\n%s", doc, m[1], block)
				}
			}
		}
	}
}

// The README's table has every environment variable that the program reads.
func TestReadmeHasEveryVariable(t *testing.T) {
	t.Parallel()
	text := read(t, "README.md")
	found := regexp.MustCompile(`env:"([A-Z_]+)"`).FindAllStringSubmatch(sources(t), -1)
	if len(found) == 0 {
		t.Fatal("no variables found in the code")
	}
	for _, m := range found {
		if !strings.Contains(text, "`"+m[1]+"`") {
			t.Errorf("README.md does not tell of %s", m[1])
		}
	}
}

// Links between documents lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{"README.md", "DESIGN.md", "CONTRIBUTING.md"} {
		for _, m := range regexp.MustCompile(`\]\(([^)#:"\s]+)\)`).FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// squeeze makes code comparable: no indentation, no empty lines.
func squeeze(code string) string {
	var lines []string
	for line := range strings.SplitSeq(code, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func quoted(t *testing.T, doc string) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(read(t, doc), -1) {
		names = append(names, m[1])
	}
	return names
}

// declared finds x, pkg.X, Type.method or variable.method.
func declared(code, name string) bool {
	owner, member, dotted := strings.Cut(name, ".")
	if !dotted {
		return regexp.MustCompile(`(?m)^(\t|func |type |var |const )?`+name+`\b`).MatchString(code) ||
			regexp.MustCompile(`\) `+name+`\(`).MatchString(code)
	}
	method := regexp.MustCompile(`(?m)^func (\(\w+ \*?` + owner + `(\[T\])?\) )?` + member + `[\[(]`)
	inInterface := regexp.MustCompile(`(?m)^\t` + member + `(\(| )`)
	return method.MatchString(code) || inInterface.MatchString(code)
}

func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func read(t *testing.T, doc string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
