package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// Every file, function, method and test that DESIGN.md names exists.
func TestDesignNamesWhatExists(t *testing.T) {
	t.Parallel()
	names := declarations(sources(t))
	for _, name := range quoted(t, "DESIGN.md") {
		switch {
		case strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "/"):
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("DESIGN.md names the file %s: %v", name, err)
			}
		case regexp.MustCompile(`^[A-Za-z]\w*(\.\w+)?$`).MatchString(name):
			if !declared(names, name) {
				t.Errorf("DESIGN.md names %s, which is not declared", name)
			}
		}
	}
}

// The code that the documents show is that of the examples, line by line.
func TestShownCodeIsCompiled(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{"README.md", "docs/outbox.md", "docs/resilience.md"} {
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

// docs/configuration.md has every environment variable that the program reads.
func TestConfigurationHasEveryVariable(t *testing.T) {
	t.Parallel()
	const doc = "docs/configuration.md"
	text := read(t, doc)
	found := regexp.MustCompile(`env:"([A-Z_]+)"`).FindAllStringSubmatch(sources(t), -1)
	if len(found) == 0 {
		t.Fatal("no variables found in the code")
	}
	for _, m := range found {
		if !strings.Contains(text, "`"+m[1]+"`") {
			t.Errorf("%s does not tell of %s", doc, m[1])
		}
	}
}

// The picture of an event's states in README.md has every state that a mark has.
func TestPictureHasEveryState(t *testing.T) {
	t.Parallel()
	picture := regexp.MustCompile("(?s)```mermaid\n(.*?)```").FindString(read(t, "README.md"))
	states := regexp.MustCompile(`(?m)^\tstate\w+ +state = "(\w+)"`).FindAllStringSubmatch(read(t, "dedup/record.go"), -1)
	if len(states) == 0 {
		t.Fatal("no states found in the code")
	}
	for _, m := range states {
		if m[1] != "known" && !strings.Contains(picture, " "+m[1]) { // known is no event's
			t.Errorf("README.md does not show the state %s", m[1])
		}
	}
}

// Links between documents lead to files and headings that exist.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	adrs, err := filepath.Glob(filepath.Join(root, "docs", "adr", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		docs = append(docs, filepath.Join(root, name))
	}
	for _, path := range append(docs, adrs...) {
		doc, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:"\s]*)(#[^)\s]+)?\)`).FindAllStringSubmatch(read(t, doc), -1) {
			target := doc
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(doc), m[1])
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			} else if m[2] != "" && !slices.Contains(anchors(read(t, target)), m[2]) {
				t.Errorf("%s links to %s%s, which has no such heading", doc, m[1], m[2])
			}
		}
	}
}

// anchors are those that GitHub makes of a document's headings.
func anchors(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(words, " ", "-"))
	}
	return all
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

// declarations has the names that the code declares: x, Type.method, and .method
// for a method of whatever type.
func declarations(code string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(?:func |type |var |const |\t)(\w+)`).FindAllStringSubmatch(code, -1) {
		names[m[1]] = true // with a tab: fields, methods of interfaces, and those of a block
	}
	for _, m := range regexp.MustCompile(`(?m)^func \(\w+ \*?(\w+)(?:\[\w+\])?\) (\w+)`).FindAllStringSubmatch(code, -1) {
		names[m[1]+"."+m[2]], names["."+m[2]] = true, true
	}
	return names
}

// declared finds x, a method x, pkg.X, Type.method and a method of an interface.
func declared(names map[string]bool, name string) bool {
	_, member, dotted := strings.Cut(name, ".")
	if !dotted {
		return names[name] || names["."+name]
	}
	return names[name] || names[member]
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
