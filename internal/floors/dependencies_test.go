package floors

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// licences lists the licenses that linked modules may have. Modules that only tests import are not distributed, so they may also have the
// MPL-2.0.
var licences = []string{"MIT", "BSD-3-Clause", "Apache-2.0", "Unlicense"}

// TestDocumentedDependencies compares docs/dependencies.md with go.mod and with the imports. Every dependency needs a
// documented reason.
func TestDocumentedDependencies(t *testing.T) {
	is := is.New(t)
	dir := root(t)
	text, err := os.ReadFile(filepath.Join(dir, "docs", "dependencies.md"))
	is.NoErr(err)
	table := map[string][]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z][\w./-]+) \| (.+) \| (.+) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		table[row[1]] = row[2:]
	}
	used := importers(t, dir)
	is.Equal(slices.Sorted(maps.Keys(table)), slices.Sorted(maps.Keys(used))) // docs/dependencies.md must match the direct dependencies in go.mod
	for name, row := range table {
		licence, in, why := row[0], row[1], row[2]
		by := strings.Join(used[name], " ")
		if by == "" {
			by = "tests"
		}
		if strings.ReplaceAll(in, "`", "") != by {
			t.Errorf("%s is imported by %s, but docs/dependencies.md lists %s", name, by, in)
		}
		if !slices.Contains(licences, licence) && (by != "tests" || licence != "MPL-2.0") {
			t.Errorf("%s has the license %s, which is not allowed for linked modules", name, licence)
		}
		is.True(len(why) > 10) // a reason is given
	}
}

// importers returns, for each direct dependency in go.mod, the folders that import it. A dependency without folders is imported only by
// tests.
func importers(t *testing.T, dir string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	by := map[string][]string{}
	for _, line := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(text), -1) {
		by[line[1]] = nil
	}
	for file, imports := range importsOf(t, dir) {
		if f, ok := at(path.Dir(file)); strings.HasSuffix(file, "_test.go") || ok && f.testOnly {
			continue
		}
		for _, imported := range imports {
			module := ""
			for name := range by {
				if (imported == name || strings.HasPrefix(imported, name+"/")) && len(name) > len(module) {
					module = name
				}
			}
			if folder := path.Dir(file); module != "" && !slices.Contains(by[module], folder) {
				by[module] = append(by[module], folder)
				slices.Sort(by[module])
			}
		}
	}
	return by
}

// The engine for Temporal is a separate module, so that programs that do not use it need not download or review its dependencies.
func TestModuleWithoutTemporal(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "all")
	list.Dir = root(t)
	out, err := list.Output()
	is.NoErr(err)
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "go.temporal.io/") {
			t.Error(strings.TrimSpace(line))
		}
	}
}
