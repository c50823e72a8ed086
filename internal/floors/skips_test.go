package floors

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestEverySkipHasItsReason compares the files in which tests may be skipped with the table in docs/testing.md.
func TestEverySkipHasItsReason(t *testing.T) {
	skips := regexp.MustCompile(`\b\w+\.(Skip|Skipf|SkipNow)\(`)
	compareFiles(t, "Skipped tests", func(file string, source []byte) bool { return skips.Match(source) })
}

// TestEverySleepHasItsReason compares the test files that sleep outside synctest bubbles with the table in docs/testing.md.
func TestEverySleepHasItsReason(t *testing.T) {
	compareFiles(t, "Sleeps", func(file string, source []byte) bool {
		return strings.HasSuffix(file, "_test.go") && bytes.Contains(source, []byte("time.Sleep"+"(")) && !bytes.Contains(source, []byte(`"testing/synctest"`))
	})
}

// compareFiles compares the source files for which matches returns true with the files listed in a section of docs/testing.md.
func compareFiles(t *testing.T, section string, matches func(file string, source []byte) bool) {
	t.Helper()
	is := is.New(t)
	dir := root(t)
	text, err := os.ReadFile(filepath.Join(dir, "docs", "testing.md"))
	is.NoErr(err)
	_, page, found := strings.Cut(string(text), "### "+section+"\n")
	is.True(found)
	page, _, _ = strings.Cut(page, "\n#")
	documented := map[string]bool{}
	for _, name := range regexp.MustCompile("`([\\w/]+\\.go)`").FindAllStringSubmatch(page, -1) {
		documented[name[1]] = true
	}
	matching := map[string]bool{}
	is.NoErr(filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".go" {
			return err
		}
		source, err := os.ReadFile(file)
		if name, _ := filepath.Rel(dir, file); err == nil && matches(file, source) {
			matching[filepath.ToSlash(name)] = true
		}
		return err
	}))
	is.Equal(slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(matching))) // docs/testing.md must match the code
}
