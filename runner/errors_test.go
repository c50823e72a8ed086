package runner_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/errors.md must list every error in this package, and no others.
func TestErrorsOnDocumentationPage(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, exported := read("../docs/errors.md"), map[string]bool{}
	for _, path := range []string{"alias.go", "without_database.go"} {
		for _, m := range regexp.MustCompile(`(?m)^(?:\t|var )(Err\w+) +=`).FindAllStringSubmatch(read(path), -1) {
			if exported[m[1]] = true; !strings.Contains(page, "`"+m[1]+"`") {
				t.Errorf("docs/errors.md lacks %s", m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile("`(Err\\w+)`").FindAllStringSubmatch(page, -1) {
		if !exported[m[1]] {
			t.Errorf("docs/errors.md has %s, which package runner does not export", m[1])
		}
	}
	if len(exported) < 30 {
		t.Errorf("found %d errors in the package", len(exported))
	}
}
